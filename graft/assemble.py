"""The one place where a name becomes an object."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from graft.decode.engine import Engine
from graft.draft.budget import as_many_as_fit, as_many_as_pay
from graft.draft.calibration import STORE_PRIOR
from graft.draft.chains import DEPTH, Chains
from graft.draft.combined import AtOnce, Combined, Guide, GuidedByModel, everything, what_pays
from graft.draft.drafter import Drafter, NoDraft
from graft.draft.growth import ChainGrowth, TreeGrowth
from graft.draft.head import BEAMS, EAGLE_NODES, HeadDrafter, HeadHelper, growth_for
from graft.draft.head_costs import head_costs
from graft.draft.head_growth import Beam
from graft.draft.head_overhead import with_overhead as with_head_overhead
from graft.draft.head_warm import warm_shapes
from graft.draft.lookup import LookupDrafter
from graft.draft.model import UNCERTAIN, Helper, ModelDrafter
from graft.draft.overhead import with_overhead
from graft.draft.paced import Paced
from graft.draft.retrieved import DEFAULT_BUDGET, DEFAULT_RETRIEVER, Retrieval
from graft.draft.short_context import (
    LEAST_PROMPT,
    ByPrompt,
    Prompts,
    ShortContextDrafter,
    Shorten,
    pays_from,
)
from graft.draft.short_context import SOURCE as SHORT_CONTEXT
from graft.draft.sight import (
    LONGSPEC_WINDOW,
    MAGICDEC,
    MAGICDEC_SNAPKV,
    RAPID_WINDOW,
    TRIFORCE,
    Sight,
)
from graft.draft.streaming import SelfDrafter
from graft.draft.tiers import CheckedGrowth, Tiered, copies_after, no_guess
from graft.errors import InputError
from graft.match.ngram import CopyIndex, NgramCounts, NgramIndex
from graft.match.rest import RestIndex
from graft.match.store_warm_up import warm_up
from graft.match.suffix_array import Store, open_store
from graft.match.suffix_automaton import SuffixAutomaton
from graft.models.checkpoints.pretrained import DEFAULT_MODEL
from graft.models.checkpoints.tokenizer import tokenizer_fingerprint
from graft.models.gpu import hold_rows
from graft.models.heads.config import KINDS
from graft.models.heads.load import AUTO_HEAD, find_heads, may_have_head
from graft.models.heads.runner import HeadRunner
from graft.models.load import LoadedModel, load_model, memory
from graft.models.prefix_files import PrefixFiles, prefix_folder, rows_key
from graft.models.same_tokens import check_same_tokens
from graft.models.step_costs import StepCosts, costs_are_given, costs_for
from graft.verify.rapid import Shift, rapid, rapid_phat
from graft.verify.rejection import rejection
from graft.verify.verdict import Verifier
from graft.verify.walk import walk

PRESETS: dict[str, str] = {
    "auto": "copies from prompt, documents and output, as many as pay on this machine",
    "plain": "no drafting: one token per step",
    "pld": "prompt lookup decoding: 3-grams, 10 tokens (Saxena 2023)",
    "copy": "CASD's copier: the two longest matches up to 10 tokens, 10 tokens each",
    "igpg": "IDR2's n-gram drafting: 5-grams with back-off, 7 tokens",
}
SHORT_PRESETS: dict[str, str] = {
    "rapid": "the target's own chain, or a smaller draft model's, from retrieved passages of a "
    "long prompt (Chen et al. 2025)",
}
MODEL_PRESETS: dict[str, str] = {
    "sd": "a draft model's chain, as deep as pays (speculative decoding)",
    "sd-tree": "a draft model's tree by EAGLE-2's rule, as deep as pays",
    "rapid-up": "a larger draft model's chain of 10 tokens from retrieved passages",
}
SELF_PRESETS: dict[str, str] = {
    "window": "the target over a window of its own cache: 32 first and 1,024 latest tokens, "
    "as deep as pays",
    "magicdec": "MagicDec: the target over its 16 first and 241 latest tokens, 3 guesses "
    "(Chen et al. 2024)",
    "magicdec-longspec": "the same over 32 and 1,024, as LongSpec compares with it",
    "magicdec-rapid": "the same over 4 and 4,092, as RAPID compares with it",
    "magicdec-snapkv": "the same over 32 last tokens of the prompt and 225 that they attend to",
    "triforce": "TriForce: copies checked by the target over 4,096 tokens retrieved from its "
    "cache, 6 guesses (Sun et al. 2024)",
}  # each with the target's own weights
HEAD_PRESETS: dict[str, str] = {
    "head": "a draft head's tree, as wide and deep as pays",
    "eagle2": "EAGLE-2's tree: the 10 best at 6 levels, 59 nodes (Li et al. 2024)",
    "longspec": "LongSpec's beam: 4, 16, 16, 16, 16 nodes (Yang et al. 2025)",
    "triforce-head": "TriForce with a draft head's chain as the lowest tier",
}
EITHER_PRESETS: dict[str, str] = {
    "casd": "a draft head's or model's tree and CASD's copier, nothing pruned",
    "rasd-pld": "a draft head's or model's tree and retrieved branches that it holds likely (RASD)",
}
STORE_PRESETS: dict[str, str] = {
    "store": "what followed in a datastore of `graft index`, as many as pay",
    "rest": "the same by REST's choice: 5,000 places, 10 tokens, 64 prefixes (He et al. 2023)",
    "rasd-rest": "a draft head's or model's tree and REST's branches that it holds likely (RASD)",
}  # each with the store's folder behind a colon
RETRIEVING = ("rapid", "rapid-up")  # presets that read retrieved passages
SAMPLED_PRESETS = ("sd", *RETRIEVING)  # chains that carry q for the rules that want it
# What comes out at a drafted position, for the target's p and the drafter's q; phat: see Shift
VERIFIERS: dict[str, str] = {
    "walk": "p, drawn with plain decoding's own noise: the same text",
    "rejection": "p: min(p, q) + (1 - sum min(p, q)) norm(max(p - q, 0))",
    "rapid": "min(q, phat) + (1 - sum min(q, phat)) norm(max(p - phat, p - q, 0))",
    "rapid-phat": "phat: min(q, phat) + (1 - sum min(q, phat)) norm(max(phat - q, 0))",
}
GAMMA = 10  # of RAPID's
MAGICDEC_CHAIN = ChainGrowth(depth=3)
TRIFORCE_DEPTH = 6
COPIED = 20  # nodes of CASD's copier: two branches of ten
EAGLE_TREE = TreeGrowth(depth=6, width=10)  # EAGLE-2's numbers, with EAGLE_NODES


@dataclass(frozen=True, slots=True)
class Helpers:
    """Networks that guess: a smaller model, and heads by their kind, the favourite first; the
    target itself, where there is somebody to shorten prompts for it. And the clock that tells
    whether guessing pays, None where counts must not depend on the machine. `ready` are drafters
    that somebody else has made in a network's place, by the preset they stand for."""

    model: Helper | None = None
    heads: Mapping[str, HeadHelper] = field(default_factory=dict)
    target: Helper | None = None
    shorten: Shorten | None = None
    chains: Chains = Chains()
    clock: Callable[[], float] | None = None
    ready: Mapping[str, Guide] = field(default_factory=dict)

    @property
    def head(self) -> HeadHelper | None:
        """The favourite."""
        return next(iter(self.heads.values()), None)

    @property
    def presets(self) -> dict[str, str]:
        """What can be made with them."""
        known = {
            **PRESETS,
            **SHORT_PRESETS,
            **(SELF_PRESETS if self.target else {}),
            **(MODEL_PRESETS if self.model else {}),
            **(HEAD_PRESETS if self.heads else {}),
            **(EITHER_PRESETS if self.model or self.heads else {}),
        }
        missing = {kind for kind in KINDS if kind not in self.heads}
        if not self.shorten:
            missing.update(RETRIEVING)
        if not self.target:
            missing.add("triforce-head")
        return {name: text for name, text in known.items() if name not in missing}


def check_draft(name: str, *, draft_model: bool, head: bool = False) -> None:
    """Refuse a draft that cannot be made: a preset, or several joined by +. Whether the head there
    may be is of the right kind is seen when it is loaded."""
    with_model = MODEL_PRESETS if draft_model else {}
    with_either = EITHER_PRESETS if draft_model or head else {}
    with_head = HEAD_PRESETS if head else {}
    known = {
        **PRESETS,
        **SHORT_PRESETS,
        **SELF_PRESETS,
        **with_model,
        **with_head,
        **with_either,
    }
    for part in name.split("+"):
        preset, _, folder = part.partition(":")
        if preset in MODEL_PRESETS and not draft_model:
            raise InputError(f"draft {part!r} needs a draft model; name one (--draft-model)")
        if preset in HEAD_PRESETS and not head:
            raise InputError(f"draft {part!r} needs a draft head; name its folder (--head)")
        if (preset in EITHER_PRESETS or preset == "rasd-rest") and not (draft_model or head):
            raise InputError(
                f"draft {part!r} needs a draft model or a head; name one (--draft-model, --head)"
            )
        if preset in STORE_PRESETS and not folder:
            raise InputError(f"draft {preset!r} needs a datastore; name it: {preset}:FOLDER")
        if preset not in STORE_PRESETS and part not in known:
            stores = [f"{preset}:FOLDER" for preset in STORE_PRESETS]
            raise InputError(
                f"unknown draft {part!r}; choose one of {', '.join([*known, *stores])}"
            )


def _needs_network(part: str) -> bool:
    several = MODEL_PRESETS | HEAD_PRESETS | EITHER_PRESETS | SELF_PRESETS
    return part in several or part.startswith("rasd-rest")


def _runs_network(part: str) -> bool:
    return _needs_network(part) or part in SHORT_PRESETS


def check_verifier(name: str, draft: str) -> None:
    """Refuse an unknown verifier, and one that would have nothing to do with such drafts."""
    if name not in VERIFIERS:
        raise InputError(f"unknown verifier {name!r}; choose one of {', '.join(VERIFIERS)}")
    if name.startswith("rapid") and draft not in SAMPLED_PRESETS:
        chains = ", ".join(SAMPLED_PRESETS)
        raise InputError(
            f"verifier {name!r} weighs a chain that a model drew, and draft {draft!r} is none; "
            f"choose one of {chains} (--draft)"
        )


def make_verifier(name: str, shift: Shift) -> Verifier:
    """A verifier by its name."""
    made = {
        "walk": walk,
        "rejection": rejection,
        "rapid": rapid(shift),
        "rapid-phat": rapid_phat(shift),
    }
    return made[name]


def _chains(verifier: str, gamma: int | None, confidence: float) -> Chains:
    """Who asks for a shifted target wants it at every token: its chains do not depend on what
    pays."""
    if gamma is None and verifier.startswith("rapid"):
        gamma = GAMMA
    return Chains(gamma, confidence, sampled=verifier != "walk")


def make_drafter(
    name: str, helpers: Helpers | None = None, find_store: Callable[[str], Store] | None = None
) -> Drafter:
    """A preset by its name, with the papers' numbers (METHODS: PLD, CASD, IGPG, REST, RASD), or
    several presets joined by +, of whose guesses as many are taken as pay."""
    helpers = helpers or Helpers()
    if name in helpers.ready:
        return helpers.ready[name]
    parts = name.split("+")
    guided = bool(helpers.heads or helpers.ready)
    for part in parts:
        if part not in helpers.ready:
            check_draft(part, draft_model=helpers.model is not None, head=guided)
    if len(parts) > 1:
        parts.sort(key=_runs_network)  # cheap ones first: see Combined
        walked = replace(helpers, chains=replace(helpers.chains, sampled=False))  # trees have no q
        made = [make_drafter(part, walked, find_store) for part in parts]
        return Combined(made, prune=what_pays)
    preset, _, folder = name.partition(":")
    if preset in STORE_PRESETS:
        assert find_store is not None, "nobody to open a datastore"
        return _with_store(preset, find_store(folder), helpers)
    if preset in KINDS and preset not in helpers.heads:
        there = ", ".join(helpers.heads)
        raise InputError(f"draft {preset!r} needs a head of that kind; the one here is {there}")
    if preset in RETRIEVING and not helpers.shorten:
        raise InputError(f"draft {preset!r} needs a model with a tokenizer")
    if preset in {*SELF_PRESETS, "triforce-head"} and helpers.target is None:
        raise InputError(f"draft {preset!r} is made of the target itself; ask its engine for it")
    makers = {
        **_lookups(),
        "auto": lambda: _auto(helpers),
        **_with_target(helpers),
        **_with_short(helpers),
        **_with_model(helpers),
        **_with_head(helpers),
        **(_with_either(helpers) if helpers.ready else {}),
    }
    return makers[name]()


def _with_store(preset: str, store: Store, helpers: Helpers) -> Drafter:
    if preset == "store":
        return LookupDrafter(
            store.index, as_many_as_pay, nodes=48, calibrated=True, prior=STORE_PRIOR
        )
    rest = LookupDrafter(lambda: RestIndex(store), as_many_as_fit, nodes=64, calibrated=False)
    if preset == "rest":
        return rest
    network = _paper_tree(helpers)
    return Combined([rest, network], prune=GuidedByModel([rest], network), ask=AtOnce())


def _paper_tree(helpers: Helpers) -> Guide:
    """The tree of a head, else of a draft model, with its paper's numbers."""
    if helpers.ready:
        return next(iter(helpers.ready.values()))
    if helpers.head:
        return _head_drafter(helpers.head)
    return ModelDrafter(helpers.model, EAGLE_TREE, nodes=EAGLE_NODES, adaptive=False)


def _head_drafter(head: HeadHelper) -> HeadDrafter:
    """By its paper's numbers."""
    beam, nodes = BEAMS[head.runner.config.kind]
    return HeadDrafter(head, beam, nodes=nodes)


def _lookups() -> dict[str, Callable[[], Drafter]]:
    return {
        "plain": NoDraft,
        "pld": lambda: LookupDrafter(NgramIndex, as_many_as_fit, nodes=10, calibrated=False),
        "copy": lambda: LookupDrafter(CopyIndex, as_many_as_fit, nodes=COPIED, calibrated=False),
        "igpg": lambda: LookupDrafter(NgramCounts, as_many_as_fit, nodes=7, calibrated=False),
    }


def _with_target(helpers: Helpers) -> dict[str, Callable[[], Drafter]]:
    """What the target drafts for itself."""
    target = helpers.target
    if target is None:
        return {}

    def magicdec(sight: Sight) -> Callable[[], Drafter]:
        return lambda: SelfDrafter(target, MAGICDEC_CHAIN, sight)

    return {
        "window": lambda: SelfDrafter(target, ChainGrowth(DEPTH), LONGSPEC_WINDOW, adaptive=True),
        "magicdec": magicdec(MAGICDEC),
        "magicdec-longspec": magicdec(LONGSPEC_WINDOW),
        "magicdec-rapid": magicdec(RAPID_WINDOW),
        "magicdec-snapkv": magicdec(MAGICDEC_SNAPKV),
        "triforce": lambda: triforce(target),
        "triforce-head": lambda: triforce(target, head=helpers.head),
    }


def triforce(target: Helper, sight: Sight = TRIFORCE, *, head: HeadHelper | None = None) -> Tiered:
    """Three tiers: copies or a head's chain, the target over what `sight` leaves, the target."""
    if head:
        beam = Beam((1,) * TRIFORCE_DEPTH, 1, keeps_all=True)
        lowest, onward = HeadDrafter(head, beam, nodes=TRIFORCE_DEPTH), no_guess
    else:
        lowest = _lookups()["copy"]()
        onward = copies_after(lowest)
    growth = CheckedGrowth(TRIFORCE_DEPTH, lowest=lowest, onward=onward, nodes=COPIED)
    return Tiered(SelfDrafter(target, growth, sight), lowest)


def _with_short(helpers: Helpers) -> dict[str, Callable[[], Drafter]]:
    """What short prompts add: drafts of the target itself, and of draft models."""
    if not helpers.shorten:
        return {}

    def up() -> ShortContextDrafter:
        chains = replace(helpers.chains, gamma=helpers.chains.gamma or GAMMA)
        return _short(replace(helpers, chains=chains), helpers.model)

    return {
        "rapid": lambda: _short(helpers, helpers.model if _smaller(helpers) else helpers.target),
        "rapid-up": up,
    }


def _smaller(helpers: Helpers) -> bool:
    """Whether there is a draft model that takes less time than the target."""
    model, target = helpers.model, helpers.target
    return bool(model) and model.costs.step(LEAST_PROMPT, 1) < target.costs.step(LEAST_PROMPT, 1)


def _short(
    helpers: Helpers, helper: Helper, *, least: int = LEAST_PROMPT, reward: float = 0.0
) -> ShortContextDrafter:
    """Chains from short prompts."""
    prompts = Prompts(
        helpers.shorten,
        least=least,
        drafted_whole=helper is not helpers.target,
        waits=helpers.chains.sampled,
    )
    named = replace(helper, source=SHORT_CONTEXT)
    return ShortContextDrafter(helpers.chains.drafter(named, reward=reward), prompts)


def _auto(helpers: Helpers, *networks: Drafter) -> Drafter:
    """Copies, and what networks guess, as many as pay; for prompts so long that it may pay also
    the target with a short version of them. And any of it as long as that pays by the clock."""
    copies = LookupDrafter(SuffixAutomaton, as_many_as_pay, nodes=48, calibrated=True)
    drafter = Combined([copies, *networks], prune=what_pays) if networks else copies
    target, least = helpers.target, None
    if helpers.shorten:
        least = pays_from(target.costs, target, DEPTH, target.model.context_length)
    if least is not None:
        short = _short(replace(helpers, chains=Chains()), target, least=least, reward=UNCERTAIN)
        long = Combined([copies, *networks, short], prune=what_pays)
        drafter = ByPrompt(long, drafter, least=least)
    return Paced(drafter, helpers.clock, copies.is_copying) if helpers.clock else drafter


def _with_model(helpers: Helpers) -> dict[str, Callable[[], Drafter]]:
    """What a draft model adds; `auto` uses it too, where it pays."""
    helper = helpers.model
    if helper is None:
        return {}
    walked = Chains()
    return {
        "auto": lambda: _auto(helpers, walked.drafter(helper, reward=UNCERTAIN)),
        "sd": lambda: helpers.chains.drafter(helper),
        "sd-tree": lambda: ModelDrafter(helper, EAGLE_TREE, nodes=EAGLE_NODES, adaptive=True),
        **_with_either(helpers),
    }


def _with_head(helpers: Helpers) -> dict[str, Callable[[], Drafter]]:
    """What heads add; `auto` uses the favourite where it pays, rather than a draft model."""
    head = helpers.head
    if head is None:
        return {}

    def paying() -> HeadDrafter:
        return HeadDrafter(head, nodes=EAGLE_NODES)

    return {
        "auto": lambda: _auto(helpers, paying()),
        "head": paying,
        **{kind: partial(_head_drafter, each) for kind, each in helpers.heads.items()},
        **_with_either(helpers),
    }


def _with_either(helpers: Helpers) -> dict[str, Callable[[], Drafter]]:
    copier = _lookups()["copy"]
    return {
        "casd": lambda: Combined([copier(), _paper_tree(helpers)], prune=everything, ask=AtOnce()),
        "rasd-pld": lambda: _rasd(_paper_tree(helpers)),
    }


def _rasd(network: Guide) -> Combined:
    """RASD over prompt lookup: up to four places, five tokens of match, eight of continuation."""
    retrieval = LookupDrafter(
        lambda: CopyIndex(max_match=5, min_match=2, branches=4, length=8),
        as_many_as_fit,
        nodes=32,
        calibrated=False,
    )
    return Combined([retrieval, network], prune=GuidedByModel([retrieval], network), ask=AtOnce())


class Drafters(dict[str, Drafter]):
    """The presets by name; compositions and datastores are made when they are first asked for."""

    def __init__(self, helpers: Helpers | None = None, tokenizer: "Any" = None) -> None:  # noqa: ANN401
        self.helpers, self._tokenizer = helpers or Helpers(), tokenizer
        self._stores: dict[str, Store] = {}
        made = {name: make_drafter(name, self.helpers) for name in self.helpers.presets}
        super().__init__(made)

    def __missing__(self, name: str) -> Drafter:
        """InputError where there is nothing of that name."""
        return self.setdefault(name, make_drafter(name, self.helpers, self.store))

    def shelve(self, name: str, store: Store) -> None:
        """From now on `store:NAME` drafts from this one."""
        self._stores[name] = store

    def forget(self, name: str) -> None:
        """Let go of a store and of the drafters that use it; those at work keep it to the end."""
        self._stores.pop(name, None)
        for draft in list(self):
            if any(part.partition(":")[2] == name for part in draft.split("+")):
                self.pop(draft, None)

    def store(self, folder: str) -> Store:
        """The datastore in a folder, if it was made with the target's tokenizer."""
        if folder not in self._stores:
            if self._tokenizer is None:
                raise InputError("a datastore needs a model with a tokenizer")
            store = open_store(folder, tokenizer_fingerprint(self._tokenizer))
            warm_up(store.border)
            self._stores[folder] = store
        return self._stores[folder]


def load(  # noqa: PLR0913  every option by its name
    model: str = DEFAULT_MODEL,
    *,
    draft_model: str | None = None,
    draft_device: str | None = None,
    head: str | None = AUTO_HEAD,
    dtype: str = "auto",
    device: str = "auto",
    context_length: int | None = None,
    draft: str = "auto",
    gamma: int | None = None,
    confidence: float = 0.0,
    retriever: str = DEFAULT_RETRIEVER,
    retrieved: int | str = DEFAULT_BUDGET,
    verifier: str = "walk",
    shift: Shift | None = None,
    invariant: bool = False,
    max_batch: int = 16,
    kv_cache: int | None = None,
    prefix_cache: int | None = None,
    disk_cache: int = 0,
    warm: bool = False,
) -> Engine:
    """An engine for a model: a known name, a hub id, a folder with safetensors or a GGUF file.

    `draft_model` is another model with the same tokenizer that guesses ahead, for the presets
    that need one, on `draft_device` if not on the model's own; `auto` then uses it where it pays.
    Its chains have `gamma` tokens, by default as many as pay, and end with the first that it gives
    less than `confidence`. `head` is the folder of a draft head that was
    trained for the model (`graft train`); "auto" takes those that are installed for it, None none.
    `dtype` and `device` "auto" take what is fastest here; `draft` names the default preset, or
    several joined by +. `invariant` makes drafted and plain output the same bit for bit in every
    dtype, at a cost; the CPU's own kernels always do. Up to `max_batch` requests run at once.

    `context_length` is how many tokens prompt and answer may have: fewer than the model reads (a
    smaller cache then), or more, which stretches its positions, and the draft model's, by YaRN.

    `retriever` (bm25, static, dense, hybrid) finds what a drafter reads of a long prompt (`rapid`),
    `retrieved` tokens of it: a number, "rapid" for the paper's max(4096, L/24), or "capped": that,
    but at most a quarter. `verifier` decides what is kept of a draft (VERIFIERS says what comes
    out); `rapid` and `rapid-phat` change the model's distribution by a `shift` towards the
    drafter's, and results then say that they are not lossless.

    `kv_cache` is how many bytes keys and values may take. A GPU's cache is allocated at once, by
    default for `max_batch` whole contexts and one more, if there is room; a CPU's grows. In it
    `prefix_cache` bytes of texts read before may be kept for prompts that begin the same: 0 for
    none, None for a tenth of the memory. `disk_cache` is how many bytes of those that
    `Engine.remember` is told to keep may lie on disk.

    `warm` captures a GPU's graphs of every size now, not when a request first needs one.
    """
    check_draft(draft, draft_model=draft_model is not None, head=may_have_head(head))
    check_verifier(verifier, draft)
    chains, retrieval = _chains(verifier, gamma, confidence), Retrieval(retriever, retrieved)
    short = any(part in RETRIEVING for part in draft.split("+"))
    retrieval.check(needed=short)
    if draft_device and not draft_model:
        raise InputError("a draft device needs a draft model; name one (--draft-model)")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    loaded = load_model(
        model, dtype=dtype, device=device, context_length=context_length, invariant=invariant
    )
    drafting = None
    if draft_model:
        drafting = load_model(
            draft_model,
            dtype=dtype,
            device=draft_device or loaded.device,
            context_length=context_length,
        )
        check_same_tokens(loaded, drafting)
    both = [loaded, drafting] if drafting else [loaded]
    bytes_of_both = sum(each.model.arena.storage.row_bytes for each in both)
    sequences = max_batch + 1
    if short and not drafting:
        sequences += -(-max_batch // 4)  # short prompts have a quarter of the tokens at most
    for each in both:
        share = each.model.arena.storage.row_bytes / bytes_of_both
        most_bytes = None if kv_cache is None else int(kv_cache * share)
        hold_rows(each.model, each.device, sequences=sequences, most_bytes=most_bytes)
    if warm:
        for each in both:
            each.model.warm_up(max_batch)
    costs = _costs(loaded)
    kept = memory(loaded.device) // 10 if prefix_cache is None else prefix_cache
    if kept:
        shelf = PrefixFiles(prefix_folder(), rows_key_of(loaded), most_bytes=disk_cache)
        loaded.model.prefixes.use(
            most_rows=kept // bytes_of_both, shelf=shelf if disk_cache else None
        )
    helper = None
    if drafting:
        if kept:
            drafting.model.prefixes.use(most_rows=kept // bytes_of_both)
        helper = with_overhead(Helper(drafting.model, _costs(drafting), loaded.model.vocabulary))
    heads = {
        runner.config.kind: _head_helper(runner, loaded, sequences=max_batch + 1)
        for runner in find_heads(head, loaded)
    }
    itself = with_overhead(Helper(loaded.model, costs, loaded.model.vocabulary))
    shorten = retrieval.with_tokenizer(loaded.tokenizer)
    helpers = Helpers(helper, heads, itself, shorten, chains, machine_clock())
    verify = make_verifier(verifier, shift or Shift())
    return engine_around(
        loaded, costs, helpers=helpers, draft=draft, verify=verify, max_batch=max_batch
    )


def _head_helper(runner: HeadRunner, target: LoadedModel, *, sequences: int) -> HeadHelper:
    if runner.device.type == "cuda":  # captured graphs read rows where they lie
        runner.hold(sequences)
    growth = growth_for(runner)
    identity, dtype = target.identity, target.dtype
    costs = head_costs(runner, growth, identity, dtype)
    helper = HeadHelper(runner, growth, costs, clock=machine_clock())
    if runner.device.type == "cuda":
        warm_shapes(helper)
    return with_head_overhead(helper, identity, dtype)


def machine_clock() -> Callable[[], float] | None:
    """What drafts are timed by, unless costs come from a table."""
    return None if costs_are_given() else time.perf_counter


def _costs(loaded: LoadedModel) -> StepCosts:
    return costs_for(loaded.model, loaded.identity, loaded.dtype, loaded.device)


def engine_around(
    loaded: LoadedModel,
    costs: StepCosts,
    *,
    helpers: Helpers | None = None,
    draft: str = "auto",
    verify: Verifier = walk,
    max_batch: int = 16,
) -> Engine:
    """An engine with every preset around a model, and those who help it, that are there already."""
    for index in (SuffixAutomaton, NgramIndex, CopyIndex, NgramCounts):
        index.warm_up()
    helpers = helpers or Helpers()
    if helpers.target is None:
        itself = Helper(loaded.model, costs, loaded.model.vocabulary)
        helpers = replace(helpers, target=itself)
    drafters = Drafters(helpers, loaded.tokenizer)
    if draft not in drafters:
        drafters[draft]  # InputError where it cannot be made
    return Engine(
        loaded,
        drafters,
        verify,
        costs,
        default_draft=draft,
        max_batch=max_batch,
    )


def rows_key_of(loaded: LoadedModel) -> str:
    """Everything the rows of a text depend on besides the text."""
    return rows_key(
        loaded.identity,
        loaded.dtype,
        loaded.forward_name,
        type(loaded.model.forward).__name__,
        loaded.device.partition(":")[0],
        version("transformers"),  # it reads the config
    )
