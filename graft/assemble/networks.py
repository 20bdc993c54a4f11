"""Makers of drafters that run a network: the target over part of its cache or a short prompt, a
model, a head; and `auto`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from graft.assemble.copies import casd_copies, copy, lookups, rasd_copies, rasd_stored
from graft.assemble.resources import DraftResources, required
from graft.draft.combined import (
    REQUERY_LEVELS,
    Combined,
    Concurrently,
    Guide,
    GuidedByModel,
    all_nodes,
    within_cost,
)
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Drafter
from graft.draft.heads.growth import Beam
from graft.draft.heads.head import BEAMS, EAGLE_NODES, DraftHead, HeadDrafter
from graft.draft.models.chains import MAX_DEPTH, RAPID_GAMMA, Chains
from graft.draft.models.growth import ChainGrowth, TreeGrowth
from graft.draft.models.model import UNCERTAIN_GAIN, DraftModel, ModelDrafter
from graft.draft.options import Casd
from graft.draft.pacing.controller import Controller
from graft.draft.short_context.hierarchical import (
    CheckedGrowth,
    ProposeAfter,
    hierarchical,
    no_proposal,
)
from graft.draft.short_context.kv_selection import (
    LONGSPEC_WINDOW,
    MAGICDEC,
    MAGICDEC_SNAPKV,
    RAPID_WINDOW,
    TRIFORCE,
    KVSelection,
)
from graft.draft.short_context.short_prompt import (
    MIN_PROMPT,
    ByPromptLength,
    Prompts,
    ShortContextDrafter,
    min_prompt_length,
)
from graft.draft.short_context.short_prompt import SOURCE as SHORT_CONTEXT
from graft.draft.short_context.streaming import SelfDrafter
from graft.match.suffix_array import Store

MAGICDEC_GAMMA, TRIFORCE_GAMMA = 3, 6  # of the papers
EAGLE_TREE = TreeGrowth(depth=6, width=10)  # EAGLE-2's numbers, with EAGLE_NODES


def _magicdec(selection: KVSelection) -> Callable[[DraftResources], SelfDrafter]:
    def make(resources: DraftResources) -> SelfDrafter:
        growth = ChainGrowth(resources.chains.gamma or MAGICDEC_GAMMA)
        return SelfDrafter(required(resources.target), growth, selection)

    return make


# MagicDec (Chen et al. 2024): 3 draft tokens of the target over a part of its cache, which has
magicdec = _magicdec(MAGICDEC)  # 16 first and 241 latest tokens
magicdec_longspec = _magicdec(LONGSPEC_WINDOW)  # 32 and 1,024, as LongSpec compares with it
magicdec_rapid = _magicdec(RAPID_WINDOW)  # 4 and 4,092, as RAPID compares with it
magicdec_snapkv = _magicdec(MAGICDEC_SNAPKV)  # 32 last of the prompt, 225 that they attend to


def window(resources: DraftResources) -> SelfDrafter:
    """The target over 32 first and 1,024 latest tokens of its own cache, its depth limited by the
    step cost unless gamma is given."""
    gamma = resources.chains.gamma
    growth = ChainGrowth(gamma or MAX_DEPTH)
    return SelfDrafter(required(resources.target), growth, LONGSPEC_WINDOW, adaptive=gamma is None)


def triforce(resources: DraftResources, selection: KVSelection = TRIFORCE) -> Combined:
    """TriForce: copies verified by the target over 4,096 tokens retrieved from its cache, 6 draft
    tokens (Sun et al. 2024)."""
    fast = casd_copies(Casd())
    return _triforce(resources, selection, fast, fast.propose_after)


def triforce_head(resources: DraftResources, selection: KVSelection = TRIFORCE) -> Combined:
    """TriForce with a draft head's chain as the lowest level."""
    depth = resources.chains.gamma or TRIFORCE_GAMMA
    beam = Beam((1,) * depth, 1, keeps_all=True)
    fast = HeadDrafter(required(resources.head), beam, nodes=depth)
    return _triforce(resources, selection, fast, no_proposal)


def _triforce(
    resources: DraftResources, selection: KVSelection, fast: Drafter, propose_after: ProposeAfter
) -> Combined:
    """Drafts of `fast`, verified by the target over a part of its KV cache."""
    depth = resources.chains.gamma or TRIFORCE_GAMMA
    growth = CheckedGrowth(depth, fast=fast, propose_after=propose_after, nodes=Casd().nodes)
    return hierarchical(SelfDrafter(required(resources.target), growth, selection), fast)


def auto(resources: DraftResources, *networks: Drafter) -> Drafter:
    """Copies and networks within the measured step cost; for long prompts also the target with a
    short version of them. With a clock, drafters are disabled while they lose time."""
    copies = lookups(resources)
    model: Combined | ByPromptLength | None = None
    if networks:
        model = Combined([copies, *networks], prune=within_cost)
    target, min_tokens = resources.target, None
    if target and resources.shorten:
        min_tokens = min_prompt_length(target.costs, target, MAX_DEPTH, target.model.context_length)
        if min_tokens is not None:
            free = replace(resources, chains=Chains())  # of any depth, without q
            short = _short(free, target, min_tokens=min_tokens, min_gain=UNCERTAIN_GAIN)
            long = Combined([copies, *networks, short], prune=within_cost)
            model = ByPromptLength(long, model or copies, min_tokens=min_tokens)
    if resources.clock is None:
        return model or copies
    min_prompt = 0 if networks else min_tokens or 0
    ahead = target is not None and target.model.asynchronous
    return Controller(copies, resources.clock, model, min_prompt=min_prompt, runs_ahead=ahead)


def rapid(resources: DraftResources) -> ShortContextDrafter:
    """RAPID: chains of a smaller draft model, else of the target, from retrieved passages of a long
    prompt, their depth limited by the step cost unless gamma is given (Chen et al. 2025)."""
    model = target = required(resources.target)
    seconds = target.costs.step(MIN_PROMPT, 1)
    if resources.model and resources.model.costs.step(MIN_PROMPT, 1) < seconds:
        model = resources.model
    return _short(resources, model)


def rapid_up(resources: DraftResources) -> ShortContextDrafter:
    """RAPID with a larger draft model and chains of 10 tokens."""
    chains = replace(resources.chains, gamma=resources.chains.gamma or RAPID_GAMMA)
    return _short(replace(resources, chains=chains), required(resources.model))


def _short(
    resources: DraftResources,
    draft_model: DraftModel,
    *,
    min_tokens: int = MIN_PROMPT,
    min_gain: float = 0.0,
) -> ShortContextDrafter:
    """Chains from short prompts."""
    prompts = Prompts(
        required(resources.shorten),
        min_tokens=min_tokens,
        drafts_whole=draft_model is not resources.target,
        wait=resources.chains.sampled,
    )
    named = replace(draft_model, source=SHORT_CONTEXT)
    drafter = resources.chains.drafter(named, min_gain=min_gain)
    return ShortContextDrafter(drafter, prompts).preload()


def auto_preset(resources: DraftResources) -> Drafter:
    """`auto` with the first head, else with the draft model, else with copies alone."""
    if resources.heads:
        return auto(resources, head(resources))
    if resources.model:
        return auto(resources, Chains().drafter(required(resources.model), min_gain=UNCERTAIN_GAIN))
    return auto(resources)


def sd(resources: DraftResources) -> ModelDrafter:
    """Speculative decoding: a draft model's chain, its depth limited by the step cost."""
    return resources.chains.drafter(required(resources.model))


def sd_tree(resources: DraftResources) -> ModelDrafter:
    """A draft model's tree by EAGLE-2's rule, its depth limited by the step cost."""
    return ModelDrafter(required(resources.model), EAGLE_TREE, nodes=EAGLE_NODES, adaptive=True)


def head(resources: DraftResources) -> HeadDrafter:
    """The first head's tree, its width and depth limited by the step cost."""
    return HeadDrafter(required(resources.head), nodes=EAGLE_NODES)


def _paper_head(kind: str) -> Callable[[DraftResources], HeadDrafter]:
    return lambda resources: _head_drafter(resources.heads, kind)


eagle3 = _paper_head("eagle3")  # the 9 to 10 best at 8 levels, 59 nodes (Li et al. 2025)
eagle2 = _paper_head("eagle2")  # the 10 best at 6 levels, 59 nodes (Li et al. 2024)
longspec = _paper_head("longspec")  # 4, 16, 16, 16, 16 nodes (Yang et al. 2025)
mtp = _paper_head("mtp")  # eagle2's tree: MTP layers come without one of their own


def casd(resources: DraftResources) -> Combined:
    """CASD: a head's or draft model's tree and its copier, nothing pruned."""
    return _casd(resources, copy(resources))


def casd_prompt(resources: DraftResources) -> Combined:
    """CASD_prompt: the same with copies from the prompt only."""
    return _casd(resources, copy(resources, output=False))


def _casd(resources: DraftResources, copies: LookupDrafter) -> Combined:
    return Combined([copies, _paper_tree(resources)], prune=all_nodes, schedule=Concurrently())


def rasd_pld(resources: DraftResources) -> Combined:
    """RASD: a head's or draft model's tree and the branches of prompt lookup that start with one
    of its 10 best tokens."""
    requery = resources.rasd.requery is not False
    return _rasd(rasd_copies(resources.rasd), resources, requery=requery)


def rasd_rest(resources: DraftResources, store: Store) -> Combined:
    """RASD with REST's branches."""
    requery = resources.rasd.requery is True
    return _rasd(rasd_stored(resources.rasd, store), resources, requery=requery)


def _rasd(retrieval: LookupDrafter, resources: DraftResources, *, requery: bool) -> Combined:
    """The tree of a head or a draft model, with retrieved branches that it confirms."""
    network, levels = _paper_tree(resources), REQUERY_LEVELS if requery else 0
    prune = GuidedByModel(retrieval, network, resources.rasd.top_k, levels)
    return Combined([retrieval, network], prune=prune, schedule=Concurrently())


def _paper_tree(resources: DraftResources) -> Guide:
    """The tree of a head, else of a draft model, with its paper's numbers."""
    if resources.ready:
        return next(iter(resources.ready.values()))
    if resources.heads:
        return _head_drafter(resources.heads, next(iter(resources.heads)))
    return ModelDrafter(required(resources.model), EAGLE_TREE, nodes=EAGLE_NODES, adaptive=False)


def _head_drafter(heads: Mapping[str, DraftHead], kind: str) -> HeadDrafter:
    """A head's drafter with its paper's numbers."""
    beam, nodes = BEAMS[kind]
    return HeadDrafter(heads[kind], beam, nodes=nodes)
