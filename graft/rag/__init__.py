"""Adaptive retrieval: a model that retrieves passages while it answers.

session = graft.rag.Session(graft.load("smollm2-135m"), graft.rag.read_corpus(["docs/"]))
answer = session.ask("Which of the two lifts is older?")

Sessions may share the KV cache of passages, also on disk:

cache = graft.rag.DocumentCache(engine, graft.rag.Reuse("cics", scope="all"), folder="rows")
session = graft.rag.Session(engine, corpus, reuse=cache)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graft.rag.corpora.named import open_corpus as open_corpus
    from graft.rag.corpus import Bm25Corpus as Bm25Corpus
    from graft.rag.corpus import Corpus as Corpus
    from graft.rag.corpus import Hit as Hit
    from graft.rag.corpus import Passage as Passage
    from graft.rag.corpus_files import read_corpus as read_corpus
    from graft.rag.document_cache import DocumentCache as DocumentCache
    from graft.rag.policies import make_policy as make_policy
    from graft.rag.reuse import Reuse as Reuse
    from graft.rag.session import Session as Session

# Imported on first use, as the names of graft itself are.
_HOMES = {
    "Bm25Corpus": "graft.rag.corpus",
    "Corpus": "graft.rag.corpus",
    "Hit": "graft.rag.corpus",
    "Passage": "graft.rag.corpus",
    "open_corpus": "graft.rag.corpora.named",
    "read_corpus": "graft.rag.corpus_files",
    "DocumentCache": "graft.rag.document_cache",
    "make_policy": "graft.rag.policies",
    "Reuse": "graft.rag.reuse",
    "Session": "graft.rag.session",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'graft.rag' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
