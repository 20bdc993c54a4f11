"""Presets that run a network: the target over less of its cache, a draft model, a head."""

from collections.abc import Callable, Mapping
from functools import partial

from graft.assemble.auto import auto
from graft.assemble.copies import COPIED, Makers, lookups, rasd_copies
from graft.assemble.helpers import Helpers
from graft.draft.combined import AtOnce, Combined, Guide, GuidedByModel, everything
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Drafter
from graft.draft.heads.growth import Beam
from graft.draft.heads.head import BEAMS, EAGLE_NODES, HeadDrafter, HeadHelper
from graft.draft.models.chains import DEPTH, Chains
from graft.draft.models.growth import ChainGrowth, TreeGrowth
from graft.draft.models.model import UNCERTAIN, Helper, ModelDrafter
from graft.draft.short_context.sight import (
    LONGSPEC_WINDOW,
    MAGICDEC,
    MAGICDEC_SNAPKV,
    RAPID_WINDOW,
    TRIFORCE,
    Sight,
)
from graft.draft.short_context.streaming import SelfDrafter
from graft.draft.short_context.tiers import CheckedGrowth, Tiered, copies_after, no_guess

MAGICDEC_CHAIN = ChainGrowth(depth=3)
TRIFORCE_DEPTH = 6
EAGLE_TREE = TreeGrowth(depth=6, width=10)  # EAGLE-2's numbers, with EAGLE_NODES


def with_target(helpers: Helpers) -> Makers:
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


def with_model(helpers: Helpers) -> Makers:
    """What a draft model adds; `auto` uses it too, where it pays."""
    helper = helpers.model
    if helper is None:
        return {}
    walked = Chains()
    return {
        "auto": lambda: auto(helpers, walked.drafter(helper, reward=UNCERTAIN)),
        "sd": lambda: helpers.chains.drafter(helper),
        "sd-tree": lambda: ModelDrafter(helper, EAGLE_TREE, nodes=EAGLE_NODES, adaptive=True),
        **with_either(helpers),
    }


def with_head(helpers: Helpers) -> Makers:
    """What heads add; `auto` uses the favourite where it pays, rather than a draft model."""
    heads = helpers.heads
    if not heads:
        return {}

    def paying() -> HeadDrafter:
        return HeadDrafter(helpers.head, nodes=EAGLE_NODES)

    return {
        "auto": lambda: auto(helpers, paying()),
        "head": paying,
        **{kind: partial(_head_drafter, heads, kind) for kind in heads},
        **with_either(helpers),
    }


def with_either(helpers: Helpers) -> Makers:
    """What combines copies with a tree, whoever drew it."""
    copier = lookups()["copy"]
    return {
        "casd": lambda: Combined([copier(), _paper_tree(helpers)], prune=everything, ask=AtOnce()),
        "rasd-pld": lambda: rasd(rasd_copies(), helpers),
    }


def rasd(retrieval: LookupDrafter, helpers: Helpers) -> Combined:
    """RASD: the tree of a head or a draft model, and what it holds likely of what is retrieved."""
    network = _paper_tree(helpers)
    return Combined([retrieval, network], prune=GuidedByModel([retrieval], network), ask=AtOnce())


def triforce(target: Helper, sight: Sight = TRIFORCE, *, head: HeadHelper | None = None) -> Tiered:
    """Three tiers: copies or a head's chain, the target over what `sight` leaves, the target."""
    if head:
        beam = Beam((1,) * TRIFORCE_DEPTH, 1, keeps_all=True)
        lowest, onward = HeadDrafter(head, beam, nodes=TRIFORCE_DEPTH), no_guess
    else:
        lowest = lookups()["copy"]()
        onward = copies_after(lowest)
    growth = CheckedGrowth(TRIFORCE_DEPTH, lowest=lowest, onward=onward, nodes=COPIED)
    return Tiered(SelfDrafter(target, growth, sight), lowest)


def _paper_tree(helpers: Helpers) -> Guide:
    """The tree of a head, else of a draft model, with its paper's numbers."""
    if helpers.ready:
        return next(iter(helpers.ready.values()))
    if helpers.heads:
        return _head_drafter(helpers.heads, next(iter(helpers.heads)))
    return ModelDrafter(helpers.model, EAGLE_TREE, nodes=EAGLE_NODES, adaptive=False)


def _head_drafter(heads: Mapping[str, HeadHelper], kind: str) -> HeadDrafter:
    """By its paper's numbers."""
    beam, nodes = BEAMS[kind]
    return HeadDrafter(heads[kind], beam, nodes=nodes)
