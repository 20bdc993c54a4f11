"""Retrievers by name.

`bm25` needs no extra package; `static` (word vectors) and `dense` (all-MiniLM-L6-v2; `dense:NAME`
any other sentence encoder or folder) need one each. Names joined by + are fused by rank; `hybrid`
is bm25+static. On a GPU bm25+dense finds more; on a CPU an encoder takes as long as a small
model's prefill. `farthest` selects the least relevant texts, for experiments.
"""

from graft.errors import InputError
from graft.retrieval.bm25 import Bm25, Farthest
from graft.retrieval.encoder import find_encoder
from graft.retrieval.fusion import Fusion
from graft.retrieval.retriever import Retriever

HYBRID = "bm25+static"
NAMES = ("bm25", "static", "dense", "farthest")


def retriever(name: str = "bm25") -> Retriever:
    """The retriever of that name, loaded; InputError for an unknown name."""
    check_retriever(name)
    parts = (HYBRID if name == "hybrid" else name).split("+")
    members = [_single(part) for part in parts]
    return members[0] if len(members) == 1 else Fusion(members)


def check_retriever(name: str) -> None:
    """Raise InputError for an unknown name; loads nothing."""
    for part in (HYBRID if name == "hybrid" else name).split("+"):
        kind, _, encoder = part.partition(":")
        if part not in NAMES and not (kind == "dense" and encoder):
            raise InputError(
                f"unknown retriever {part!r}; choose bm25, static, dense, dense:NAME or hybrid, or "
                "join several by +"
            )


def _single(name: str) -> Retriever:
    if name == "bm25":
        return Bm25()
    return Farthest() if name == "farthest" else find_encoder(name)
