"""Uploaded corpora on disk: one file each, so that a restarted server has them again.

A file has the texts alone; tokens and indexes belong to a model and are made at start. An upload
is acknowledged after its file is on disk, a deletion after the file is gone.
"""

import gzip
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from graft.documents import Document
from graft.home import atomic_file, clean

log = logging.getLogger("graft.server")
Saved = tuple[str, str, list[Document]]  # tenant, name, documents


class CorpusFiles:
    """The corpora of every tenant, each tenant's in a folder that only this user can open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, tenant: str, corpus_id: str, documents: Sequence[Document]) -> None:
        """Write a corpus; one of the same name is replaced."""
        content = {"tenant": tenant, "id": corpus_id, "documents": [*map(asdict, documents)]}
        with atomic_file(self._file(tenant, corpus_id)) as temporary:
            temporary.parent.chmod(0o700)
            data = json.dumps(content).encode()
            temporary.write_bytes(gzip.compress(data, compresslevel=1))

    def delete(self, tenant: str, corpus_id: str) -> None:
        """Remove a corpus."""
        file = self._file(tenant, corpus_id)
        file.unlink(missing_ok=True)
        if os.name != "nt":
            handle = os.open(file.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def load(self, tenants: Iterable[str]) -> Iterator[Saved]:
        """The corpora of these tenants; a file that cannot be read is left out with a warning."""
        for tenant in tenants:
            folder = self._file(tenant, "").parent
            clean(folder)
            for file in sorted(folder.glob("*.json.gz")):
                try:
                    yield _parsed(file, tenant)
                except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError) as error:
                    log.warning("cannot read the corpus in %s: %s", file, error)

    def _file(self, tenant: str, corpus_id: str) -> Path:
        name = hashlib.sha256(corpus_id.encode()).hexdigest()[:32]
        return self.folder / (tenant or "without-key") / f"{name}.json.gz"


def _parsed(file: Path, tenant: str) -> Saved:
    content = json.loads(gzip.decompress(file.read_bytes()))
    documents = [
        Document(each["name"], each["text"], tuple(each["pages"])) for each in content["documents"]
    ]
    if content["tenant"] != tenant:
        raise ValueError("it belongs to another key")
    return tenant, content["id"], documents
