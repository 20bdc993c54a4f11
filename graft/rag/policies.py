"""Policies by name, with the published thresholds for a model and a family of questions."""

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.rag.dragin import PUBLISHED, Dragin, ModelAttention, Thresholds
from graft.rag.fixed import FIX_LENGTHS, FixedLength, FixedSentence
from graft.rag.flare import THRESHOLDS, Flare
from graft.rag.policy import TUNED_FOR, Policy, check_policy

OTHERS = "hotpotqa"  # its thresholds are used for families that have none, such as MuSiQue


def make_policy(
    name: str,
    engine: Engine,
    *,
    family: str = "general",
    threshold: float | None = None,
    thresholds: str = TUNED_FOR[0],
) -> Policy:
    """A policy with the published `thresholds` of a model for a family of questions, or another
    `threshold`: tokens for fl, mean 1 - p for flare, RIND for dragin."""
    check_policy(name, thresholds)
    known = family if family in FIX_LENGTHS else OTHERS
    if name == "fl":
        length = FIX_LENGTHS[known] if threshold is None else threshold
        if length < 1 or length != int(length):
            raise InputError(f"FL-RAG retrieves every 1 or more tokens, not every {length}")
        return FixedLength(int(length))
    if name == "fs":
        if threshold is not None:
            raise InputError("FS-RAG has no threshold: it retrieves after every sentence")
        return FixedSentence()
    if name == "flare":
        return Flare(THRESHOLDS[thresholds][known] if threshold is None else threshold)
    published = PUBLISHED[thresholds][known]
    chosen = published.rind if threshold is None else threshold
    return Dragin(ModelAttention(engine), Thresholds(chosen, published.top))
