"""What belongs to one API key: its drafters, and the corpora of its requests.

Drafters learn how often their drafts are accepted, so their drafts depend on the texts they have
drafted for. Each key therefore has its own. A corpus is in memory: its documents, which answer
requests that name it, and a datastore (a suffix array), from which all requests of its key draft;
`corpus_files.py` keeps the documents on disk. The server's own corpus belongs to every key and has
no datastore.
"""

import logging
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from graft.assemble.drafters import Drafters
from graft.decode.engine import Engine
from graft.documents import Document
from graft.draft.drafter import Drafter
from graft.match.store_build import shard_in_memory
from graft.match.store_files import Manifest
from graft.match.store_warm_up import warm_up
from graft.match.suffix_array import Store
from graft.models.checkpoints.tokenizer import tokenizer_fingerprint, vocabulary_size
from graft.retrieval.bm25 import Bm25Index
from graft.retrieval.passage import split
from graft.server.corpus_files import CorpusFiles
from graft.server.errors import ApiError
from graft.server.middleware import tenant_of
from graft.server.passages import Passages
from graft.server.settings import ServerSettings

log = logging.getLogger("graft.server")
SHARED = "default"  # the name of the server's own corpus
MAX_CHARACTERS = 2_000_000  # of a corpus that is searched without an index, in 0.35 s of CPU time
BEST_PASSAGES = 64


class Tenants:
    """The drafters of every key; without keys, the engine's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._drafters = {"": cast(Drafters, engine.drafters)}  # as `graft.load` makes them

    def drafters(self, tenant: str) -> Drafters:
        """A tenant's own drafters, made on first use."""
        with self._lock:
            if tenant not in self._drafters:
                shared = self._drafters[""].resources  # networks and costs, which do not learn
                self._drafters[tenant] = Drafters(shared, self._engine.loaded.tokenizer)
            return self._drafters[tenant]


class DocumentIndex:
    """Finds the documents of a corpus that match a question."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = tuple(documents)
        self._index: Bm25Index | None = None
        if sum(len(each.text) for each in documents) > MAX_CHARACTERS:
            parts = [split(each.name, each.text) for each in documents]
            self._owners = [number for number, part in enumerate(parts) for _ in part]
            self._index = Bm25Index.of(passage.text for part in parts for passage in part)

    def matching(self, question: str) -> list[Document]:
        """All documents; of a large corpus those of the best passages, in order."""
        if self._index is None:
            return list(self.documents)
        numbers, _ = self._index.rank(question, BEST_PASSAGES)
        best = sorted({self._owners[number] for number in numbers.tolist()})
        return [self.documents[number] for number in best or range(min(BEST_PASSAGES, len(self)))]

    @cached_property
    def passages(self) -> Passages:
        """For adaptive retrieval; made on first use."""
        return Passages(self.documents)

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True, slots=True)
class Corpus:
    """`name` is the random name of its datastore."""

    name: str
    tokens: int
    index: DocumentIndex


@dataclass(frozen=True, slots=True)
class Chosen:
    """The drafter of one request, which keeps it while corpora change; see `DraftersByName`."""

    name: str
    drafter: Drafter

    @property
    def names(self) -> list[str]:
        """See `DraftersByName`."""
        return [self.name]

    def __contains__(self, name: object) -> bool:
        return name == self.name

    def __getitem__(self, name: str) -> Drafter:
        return self.drafter


class Corpora:
    """The corpora of every tenant; safe to call from several threads."""

    def __init__(self, engine: Engine, tenants: Tenants, settings: ServerSettings) -> None:
        self._engine, self.tenants, self._settings = engine, tenants, settings
        self._lock = threading.Lock()  # held by one upload or deletion
        self._changes = threading.Lock()  # held while names and datastores change
        self._corpora: dict[str, dict[str, Corpus]] = {}
        self.shared = DocumentIndex(settings.corpus) if settings.corpus else None
        self._files: CorpusFiles | None = None  # while corpora are restored
        if settings.corpora_folder:
            self._restore(files := CorpusFiles(settings.corpora_folder))
            self._files = files

    def add(
        self, tenant: str, corpus_id: str | None, documents: list[Document]
    ) -> tuple[str, Corpus]:
        """Index documents and keep them on disk; a corpus of the same name is replaced."""
        corpus_id = corpus_id or secrets.token_hex(8)
        if corpus_id == SHARED and self.shared:
            raise ApiError(f"the corpus {SHARED!r} is the server's; choose another name", 409)
        with self._lock:
            others = {key: each for key, each in self.of(tenant).items() if key != corpus_id}
            if len(others) >= self._settings.max_corpora:
                raise ApiError(
                    f"a key may have {self._settings.max_corpora} corpora; remove one",
                    code="too_many_corpora",
                )
            encoded = [self._engine.encoder.text(each.text) for each in documents]
            self._check_size(others, encoded)
            index = DocumentIndex(documents)
            corpus = Corpus(secrets.token_hex(16), sum(map(len, encoded)), index)
            store, drafters = self._store(encoded), self.tenants.drafters(tenant)
            if self._files:
                self._files.save(tenant, corpus_id, documents)
            replaced = self.of(tenant).get(corpus_id)
            with self._changes:
                drafters.add_store(corpus.name, store)
                self._corpora[tenant] = {**others, corpus_id: corpus}
                if replaced:
                    drafters.remove_store(replaced.name)
        return corpus_id, corpus

    def remove(self, tenant: str, corpus_id: str) -> None:
        """Remove a corpus; running requests may use it to their end."""
        with self._lock:
            kept = dict(self.of(tenant))
            corpus = kept.pop(corpus_id, None)
            if corpus is None:
                raise ApiError(f"there is no corpus {corpus_id!r}", 404, param="corpus_id")
            if self._files:
                self._files.delete(tenant, corpus_id)
            with self._changes:
                self._corpora[tenant] = kept
                self.tenants.drafters(tenant).remove_store(corpus.name)

    def of(self, tenant: str) -> dict[str, Corpus]:
        """A tenant's corpora by their names."""
        return self._corpora.get(tenant, {})

    def documents(self, tenant: str, names: list[str] | None, question: str) -> list[Document]:
        """The documents of these corpora that may answer a question."""
        named = self.named(tenant, names)
        return [each for index in named for each in index.matching(question)]

    def named(self, tenant: str, names: list[str] | None) -> list[DocumentIndex]:
        """The corpora of these names, the server's own if none are given."""
        known = {key: corpus.index for key, corpus in self.of(tenant).items()}
        if self.shared:
            known[SHARED] = self.shared
            names = [SHARED] if names is None else names
        wanted = list(dict.fromkeys(names or ()))
        for name in wanted:
            if name not in known:
                raise ApiError(f"there is no corpus {name!r}", 404, param="corpora")
        return [known[name] for name in wanted]

    def drafter(self, tenant: str, method: str) -> Chosen:
        """The drafter of a preset, which also drafts from the tenant's corpora."""
        drafters = self.tenants.drafters(tenant)
        with self._changes:
            stores = [f"store:{corpus.name}" for corpus in self.of(tenant).values()]
            name = "+".join([method, *stores]) if method != "plain" else method
            if name in drafters:
                return Chosen(name, drafters[name])
            return Chosen(name, self._engine.exclusive(lambda: drafters[name]))

    def _restore(self, files: CorpusFiles) -> None:
        """Add the corpora on disk that belong to the server's keys."""
        tenants = [tenant_of(key) for key in self._settings.api_keys] or [""]
        for tenant, corpus_id, documents in files.load(tenants):
            try:
                self.add(tenant, corpus_id, documents)
            except ApiError as error:
                log.warning("corpus %r is not restored: %s", corpus_id, error)
        if count := sum(map(len, self._corpora.values())):
            log.info("corpora of earlier uploads: %d, in %s", count, files.folder)

    def _check_size(self, others: dict[str, Corpus], encoded: list[list[int]]) -> None:
        tokens, limit = sum(map(len, encoded)), self._settings.max_corpus_tokens
        if tokens + sum(each.tokens for each in others.values()) > limit:
            raise ApiError(
                f"the corpora of a key may have {limit} tokens together",
                413,
                param="documents",
            )
        if not tokens:
            raise ApiError("the documents are empty", param="documents")

    def _store(self, encoded: list[list[int]]) -> Store:
        tokenizer = self._engine.loaded.tokenizer
        manifest = Manifest(tokenizer_fingerprint(tokenizer), "", vocabulary_size(tokenizer))
        warm_up(manifest.vocabulary)
        return Store(manifest, [shard_in_memory(manifest, encoded)])
