"""Policies by their names, with the numbers their authors published for a family of questions."""

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.rag.attention import Attention, ModelAttention
from graft.rag.dragin import PUBLISHED, Dragin, Thresholds
from graft.rag.fixed import FIX_LENGTHS, FixedLength, FixedSentence
from graft.rag.flare import THRESHOLDS, Flare
from graft.rag.policy import Policy

POLICIES = {
    "fl": "FL-RAG: every so many tokens, with them as the query",
    "fs": "FS-RAG: after every sentence, with it as the query",
    "flare": "FLARE: for sentences written with low probabilities",
    "dragin": "DRAGIN: for words that are uncertain and attended to",
}


def check_policy(name: str) -> None:
    """Refuse a policy that there is not."""
    if name not in POLICIES:
        raise InputError(f"unknown policy {name!r}; choose one of {', '.join(POLICIES)}")


def make_policy(
    name: str,
    engine: Engine,
    *,
    family: str = "general",
    threshold: float | None = None,
    attention: Attention | None = None,
) -> Policy:
    """A policy with the published numbers for a family of questions, or another threshold: tokens
    for fl, mean 1 - p for flare, RIND for dragin. `attention` is whom dragin asks for weights."""
    check_policy(name)
    known = family if family in PUBLISHED else "general"
    if name == "fl":
        length = FIX_LENGTHS[known] if threshold is None else threshold
        if length < 1 or length != int(length):
            raise InputError(f"FL-RAG retrieves every 1 or more tokens, not {length}")
        return FixedLength(int(length))
    if name == "fs":
        if threshold is not None:
            raise InputError("FS-RAG retrieves after every sentence; it has no threshold")
        return FixedSentence()
    if name == "flare":
        return Flare(THRESHOLDS[known] if threshold is None else threshold)
    published = PUBLISHED[known]
    chosen = published.rind if threshold is None else threshold
    return Dragin(attention or ModelAttention(engine), Thresholds(chosen, published.top))
