"""Presets that run a network: the target over a part of its KV cache, a draft model, a head."""

from collections.abc import Callable, Mapping
from functools import partial

from graft.assemble.auto import auto
from graft.assemble.copies import COPIED, Makers, lookups, rasd_copies
from graft.assemble.resources import DraftResources
from graft.draft.combined import Combined, Concurrently, Guide, GuidedByModel, all_nodes
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Drafter
from graft.draft.heads.growth import Beam
from graft.draft.heads.head import BEAMS, EAGLE_NODES, DraftHead, HeadDrafter
from graft.draft.models.chains import MAX_DEPTH, Chains
from graft.draft.models.growth import ChainGrowth, TreeGrowth
from graft.draft.models.model import UNCERTAIN_GAIN, DraftModel, ModelDrafter
from graft.draft.short_context.hierarchical import (
    CheckedGrowth,
    hierarchical,
    lookup_after,
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
from graft.draft.short_context.streaming import SelfDrafter

MAGICDEC_CHAIN = ChainGrowth(depth=3)
TRIFORCE_DEPTH = 6
EAGLE_TREE = TreeGrowth(depth=6, width=10)  # EAGLE-2's numbers, with EAGLE_NODES


def with_target(resources: DraftResources) -> Makers:
    """Presets in which the target drafts for itself."""
    target = resources.target
    if target is None:
        return {}

    def magicdec(selection: KVSelection) -> Callable[[], Drafter]:
        return lambda: SelfDrafter(target, MAGICDEC_CHAIN, selection)

    return {
        "window": lambda: SelfDrafter(
            target, ChainGrowth(MAX_DEPTH), LONGSPEC_WINDOW, adaptive=True
        ),
        "magicdec": magicdec(MAGICDEC),
        "magicdec-longspec": magicdec(LONGSPEC_WINDOW),
        "magicdec-rapid": magicdec(RAPID_WINDOW),
        "magicdec-snapkv": magicdec(MAGICDEC_SNAPKV),
        "triforce": lambda: triforce(target),
        "triforce-head": lambda: triforce(target, head=resources.head),
    }


def with_model(resources: DraftResources) -> Makers:
    """Presets with a draft model; `auto` uses it where that is expected to save time."""
    draft_model = resources.model
    if draft_model is None:
        return {}
    return {
        "auto": lambda: auto(resources, Chains().drafter(draft_model, min_gain=UNCERTAIN_GAIN)),
        "sd": lambda: resources.chains.drafter(draft_model),
        "sd-tree": lambda: ModelDrafter(draft_model, EAGLE_TREE, nodes=EAGLE_NODES, adaptive=True),
        **with_either(resources),
    }


def with_head(resources: DraftResources) -> Makers:
    """Presets with a head; `auto` prefers the first head to a draft model."""
    heads = resources.heads
    if not heads:
        return {}

    def adaptive() -> HeadDrafter:
        return HeadDrafter(resources.head, nodes=EAGLE_NODES)

    return {
        "auto": lambda: auto(resources, adaptive()),
        "head": adaptive,
        **{kind: partial(_head_drafter, heads, kind) for kind in heads},
        **with_either(resources),
    }


def with_either(resources: DraftResources) -> Makers:
    """Presets that combine copies with the tree of a head or a draft model."""
    copier = lookups()["copy"]
    return {
        "casd": lambda: Combined(
            [copier(), _paper_tree(resources)], prune=all_nodes, schedule=Concurrently()
        ),
        "rasd-pld": lambda: rasd(rasd_copies(), resources),
    }


def rasd(retrieval: LookupDrafter, resources: DraftResources) -> Combined:
    """RASD: the tree of a head or a draft model, with retrieved branches that it confirms."""
    network = _paper_tree(resources)
    prune = GuidedByModel([retrieval], network)
    return Combined([retrieval, network], prune=prune, schedule=Concurrently())


def triforce(
    target: DraftModel, selection: KVSelection = TRIFORCE, *, head: DraftHead | None = None
) -> Combined:
    """Copies or a head's chain, verified by the target over a part of its KV cache."""
    if head:
        beam = Beam((1,) * TRIFORCE_DEPTH, 1, keeps_all=True)
        fast, propose_after = HeadDrafter(head, beam, nodes=TRIFORCE_DEPTH), no_proposal
    else:
        fast = lookups()["copy"]()
        propose_after = lookup_after(fast)
    growth = CheckedGrowth(TRIFORCE_DEPTH, fast=fast, propose_after=propose_after, nodes=COPIED)
    return hierarchical(SelfDrafter(target, growth, selection), fast)


def _paper_tree(resources: DraftResources) -> Guide:
    """The tree of a head, or else of a draft model, with its paper's numbers."""
    if resources.ready:
        return next(iter(resources.ready.values()))
    if resources.heads:
        return _head_drafter(resources.heads, next(iter(resources.heads)))
    return ModelDrafter(resources.model, EAGLE_TREE, nodes=EAGLE_NODES, adaptive=False)


def _head_drafter(heads: Mapping[str, DraftHead], kind: str) -> HeadDrafter:
    """A head's drafter with its paper's numbers."""
    beam, nodes = BEAMS[kind]
    return HeadDrafter(heads[kind], beam, nodes=nodes)
