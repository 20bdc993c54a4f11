"""What belongs to one API key: its drafters, and the texts that its requests may draft from.

Drafters learn how often their drafts are accepted, so their drafts depend on the texts they have
drafted for. Each key therefore has its own. The corpora's routes are SGLang's, but only requests
of the key that added a corpus draft from it. A corpus is a datastore (a suffix array) in memory.
"""

import secrets
import threading
from dataclasses import dataclass
from typing import cast

import numpy as np

from graft.assemble.drafters import Drafters
from graft.decode.engine import Engine
from graft.match.store_files import Manifest, ShardArrays
from graft.match.store_warm_up import warm_up
from graft.match.suffix_array import Store
from graft.match.suffix_sort import suffix_array
from graft.models.checkpoints.tokenizer import tokenizer_fingerprint, vocabulary_size
from graft.server.errors import ApiError
from graft.server.settings import ServerSettings


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


@dataclass(frozen=True, slots=True)
class Corpus:
    """`name` is the random name of its datastore."""

    name: str
    tokens: int


class Corpora:
    """The corpora of every tenant; safe to call from several threads."""

    def __init__(self, engine: Engine, tenants: Tenants, settings: ServerSettings) -> None:
        self._engine, self._tenants, self._settings = engine, tenants, settings
        self._lock = threading.Lock()
        self._corpora: dict[str, dict[str, Corpus]] = {}

    def add(self, tenant: str, corpus_id: str | None, documents: list[str]) -> tuple[str, Corpus]:
        """Index texts; a corpus of the same name is replaced."""
        corpus_id = corpus_id or secrets.token_hex(8)
        with self._lock:
            others = {key: each for key, each in self.of(tenant).items() if key != corpus_id}
            if len(others) >= self._settings.max_corpora:
                raise ApiError(
                    f"a key may have {self._settings.max_corpora} corpora; remove one",
                    code="too_many_corpora",
                )
            encoded = [self._engine.encoder.text(text) for text in documents]
            self._check_size(others, encoded)
            corpus = Corpus(secrets.token_hex(16), sum(map(len, encoded)))
            drafters = self._tenants.drafters(tenant)
            drafters.add_store(corpus.name, self._store(encoded))
            replaced = self.of(tenant).get(corpus_id)
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
            self._corpora[tenant] = kept
            self._tenants.drafters(tenant).remove_store(corpus.name)

    def of(self, tenant: str) -> dict[str, Corpus]:
        """A tenant's corpora by their names."""
        return self._corpora.get(tenant, {})

    def drafts(self, tenant: str) -> list[str]:
        """The presets that draft from a tenant's corpora."""
        return [f"store:{corpus.name}" for corpus in self.of(tenant).values()]

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
        parts = [[*tokens, manifest.vocabulary] for tokens in encoded if tokens]
        text = np.concatenate([np.array(part, manifest.dtype) for part in parts])
        suffixes = suffix_array(text, manifest.vocabulary)
        for array in (text, suffixes):
            array.flags.writeable = False
        return Store(manifest, [ShardArrays(text, suffixes)])
