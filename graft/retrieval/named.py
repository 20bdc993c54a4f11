"""Retrievers by name.

`bm25` needs nothing else; `static` (word vectors) and `dense` (all-MiniLM-L6-v2; `dense:NAME` any
other sentence encoder or folder) need a package each. Names joined by + are fused by rank;
`hybrid` is bm25+static. On a GPU bm25+dense finds more; on a CPU an encoder takes as long as a
small model takes to read the prompt. `farthest` takes what helps least, as a test.
"""

from graft.errors import InputError
from graft.retrieval.bm25 import Bm25
from graft.retrieval.farthest import Farthest
from graft.retrieval.fusion import Fusion
from graft.retrieval.retriever import Retriever

HYBRID = "bm25+static"


def retriever(name: str = "bm25") -> Retriever:
    """The retriever of that name; what it loads is loaded now."""
    parts = (HYBRID if name == "hybrid" else name).split("+")
    members = [_single(part) for part in parts]
    return members[0] if len(members) == 1 else Fusion(members)


def _single(name: str) -> Retriever:
    kind, _, encoder = name.partition(":")
    if name == "bm25":
        return Bm25()
    if name == "farthest":
        return Farthest()
    if name == "static":
        from graft.retrieval.static import StaticEmbeddings

        return StaticEmbeddings()
    if name == "dense" or (kind == "dense" and encoder):
        from graft.retrieval.dense import MINILM, DenseEmbeddings

        return DenseEmbeddings(encoder or MINILM)
    raise InputError(
        f"there is no retriever {name}: choose bm25, static, dense, dense:NAME or hybrid, "
        "or join some by +"
    )
