"""Presets that run a network: the target over less of its cache, a draft model, a head."""

from collections.abc import Callable, Mapping
from functools import partial

from graft.assemble.auto import auto
from graft.assemble.copies import COPIED, Makers, lookups, rasd_copies
from graft.assemble.resources import DraftResources
from graft.draft.combined import AtOnce, Combined, Guide, GuidedByModel, everything
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Drafter
from graft.draft.heads.growth import Beam
from graft.draft.heads.head import BEAMS, EAGLE_NODES, DraftHead, HeadDrafter
from graft.draft.models.chains import DEPTH, Chains
from graft.draft.models.growth import ChainGrowth, TreeGrowth
from graft.draft.models.model import UNCERTAIN, DraftModel, ModelDrafter
from graft.draft.short_context.hierarchical import (
    CheckedGrowth,
    Hierarchical,
    copies_after,
    no_guess,
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
    """What the target drafts for itself."""
    target = resources.target
    if target is None:
        return {}

    def magicdec(selection: KVSelection) -> Callable[[], Drafter]:
        return lambda: SelfDrafter(target, MAGICDEC_CHAIN, selection)

    return {
        "window": lambda: SelfDrafter(target, ChainGrowth(DEPTH), LONGSPEC_WINDOW, adaptive=True),
        "magicdec": magicdec(MAGICDEC),
        "magicdec-longspec": magicdec(LONGSPEC_WINDOW),
        "magicdec-rapid": magicdec(RAPID_WINDOW),
        "magicdec-snapkv": magicdec(MAGICDEC_SNAPKV),
        "triforce": lambda: triforce(target),
        "triforce-head": lambda: triforce(target, head=resources.head),
    }


def with_model(resources: DraftResources) -> Makers:
    """What a draft model adds; `auto` uses it too, where it pays."""
    helper = resources.model
    if helper is None:
        return {}
    walked = Chains()
    return {
        "auto": lambda: auto(resources, walked.drafter(helper, reward=UNCERTAIN)),
        "sd": lambda: resources.chains.drafter(helper),
        "sd-tree": lambda: ModelDrafter(helper, EAGLE_TREE, nodes=EAGLE_NODES, adaptive=True),
        **with_either(resources),
    }


def with_head(resources: DraftResources) -> Makers:
    """What heads add; `auto` uses the favourite where it pays, rather than a draft model."""
    heads = resources.heads
    if not heads:
        return {}

    def paying() -> HeadDrafter:
        return HeadDrafter(resources.head, nodes=EAGLE_NODES)

    return {
        "auto": lambda: auto(resources, paying()),
        "head": paying,
        **{kind: partial(_head_drafter, heads, kind) for kind in heads},
        **with_either(resources),
    }


def with_either(resources: DraftResources) -> Makers:
    """What combines copies with a tree, whoever drew it."""
    copier = lookups()["copy"]
    return {
        "casd": lambda: Combined(
            [copier(), _paper_tree(resources)], prune=everything, ask=AtOnce()
        ),
        "rasd-pld": lambda: rasd(rasd_copies(), resources),
    }


def rasd(retrieval: LookupDrafter, resources: DraftResources) -> Combined:
    """RASD: the tree of a head or a draft model, and what it holds likely of what is retrieved."""
    network = _paper_tree(resources)
    return Combined([retrieval, network], prune=GuidedByModel([retrieval], network), ask=AtOnce())


def triforce(
    target: DraftModel, selection: KVSelection = TRIFORCE, *, head: DraftHead | None = None
) -> Hierarchical:
    """Three levels: copies or a head's chain, the target over a part of its cache, the target."""
    if head:
        beam = Beam((1,) * TRIFORCE_DEPTH, 1, keeps_all=True)
        lowest, onward = HeadDrafter(head, beam, nodes=TRIFORCE_DEPTH), no_guess
    else:
        lowest = lookups()["copy"]()
        onward = copies_after(lowest)
    growth = CheckedGrowth(TRIFORCE_DEPTH, lowest=lowest, onward=onward, nodes=COPIED)
    return Hierarchical(SelfDrafter(target, growth, selection), lowest)


def _paper_tree(resources: DraftResources) -> Guide:
    """The tree of a head, else of a draft model, with its paper's numbers."""
    if resources.ready:
        return next(iter(resources.ready.values()))
    if resources.heads:
        return _head_drafter(resources.heads, next(iter(resources.heads)))
    return ModelDrafter(resources.model, EAGLE_TREE, nodes=EAGLE_NODES, adaptive=False)


def _head_drafter(heads: Mapping[str, DraftHead], kind: str) -> HeadDrafter:
    """By its paper's numbers."""
    beam, nodes = BEAMS[kind]
    return HeadDrafter(heads[kind], beam, nodes=nodes)
