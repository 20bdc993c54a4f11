"""Corpora by name: a built one, a collection in Milvus, or files."""

from collections.abc import Sequence
from pathlib import Path

from graft.errors import InputError
from graft.rag.corpora.folder import is_corpus
from graft.rag.corpus import Corpus
from graft.rag.corpus_files import read_corpus

MILVUS = "milvus:"


def open_corpus(names: Sequence[str | Path]) -> Corpus:
    """Open a folder of `graft index passages`, `milvus:FILE.db#NAME` or `milvus:URI#NAME`, or read
    files, folders and patterns into memory."""
    built = [str(name) for name in names if is_built(str(name))]
    if not built:
        return read_corpus(names)
    if len(names) > 1:
        raise InputError(f"{built[0]} is a built corpus; name it alone, or build one of all files")
    if built[0].startswith(MILVUS):
        from graft.rag.corpora.milvus import MilvusCorpus, as_address

        return MilvusCorpus(as_address(built[0]))
    from graft.rag.corpora.built import BuiltCorpus

    return BuiltCorpus(Path(built[0]).expanduser())


def is_built(name: str) -> bool:
    """Whether a name is that of a built corpus, not of files."""
    return name.startswith(MILVUS) or is_corpus(Path(name).expanduser())
