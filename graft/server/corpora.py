"""Texts that a key's requests may draft from, added and removed while the server runs.

The routes are SGLang's; but a corpus belongs to the key that brought it, and no other key's
requests draft from it. A corpus is a datastore (a suffix array) in memory.
"""

import secrets
import threading
from dataclasses import dataclass

import numpy as np

from graft.decode.engine import Engine
from graft.match.store_files import Manifest, ShardArrays
from graft.match.store_warm_up import warm_up
from graft.match.suffix_array import Store
from graft.match.suffix_sort import suffix_array
from graft.models.checkpoints.tokenizer import tokenizer_fingerprint, vocabulary_size
from graft.server.failures import Refusal
from graft.server.settings import ServerSettings
from graft.server.tenants import Tenants


@dataclass(frozen=True, slots=True)
class Corpus:
    """A store by a name that nobody can guess, and its size."""

    name: str
    documents: int
    tokens: int


class Corpora:
    """The corpora of every tenant; called by several threads."""

    def __init__(self, engine: Engine, tenants: Tenants, settings: ServerSettings) -> None:
        self._engine, self._tenants, self._settings = engine, tenants, settings
        self._changing = threading.Lock()
        self._known: dict[str, dict[str, Corpus]] = {}

    def add(self, tenant: str, corpus_id: str | None, documents: list[str]) -> tuple[str, Corpus]:
        """Index texts; a corpus of the same name is replaced."""
        corpus_id = corpus_id or secrets.token_hex(8)
        with self._changing:
            others = {key: each for key, each in self.of(tenant).items() if key != corpus_id}
            if len(others) >= self._settings.max_corpora:
                raise Refusal(f"a key may have {self._settings.max_corpora} corpora; remove one",
                              code="too_many_corpora")  # fmt: skip
            encoded = [self._engine.encoder.text(text) for text in documents]
            count = sum(map(len, encoded))
            if (
                count + sum(each.tokens for each in others.values())
                > self._settings.max_corpus_tokens
            ):
                raise Refusal(f"the corpora of a key may have {self._settings.max_corpus_tokens} "
                              "tokens together", 413, param="documents")  # fmt: skip
            if not count:
                raise Refusal("the documents are empty", param="documents")
            corpus = Corpus(secrets.token_hex(16), len(documents), count)
            drafters = self._tenants.drafters(tenant)
            drafters.add_store(corpus.name, self._store(encoded))
            replaced = self.of(tenant).get(corpus_id)
            self._known[tenant] = {**others, corpus_id: corpus}
            if replaced:
                drafters.remove_store(replaced.name)
        return corpus_id, corpus

    def remove(self, tenant: str, corpus_id: str) -> None:
        """Forget a corpus; answers being written may use it to their end."""
        with self._changing:
            kept = dict(self.of(tenant))
            corpus = kept.pop(corpus_id, None)
            if corpus is None:
                raise Refusal(f"there is no corpus {corpus_id!r}", 404, param="corpus_id")
            self._known[tenant] = kept
            self._tenants.drafters(tenant).remove_store(corpus.name)

    def of(self, tenant: str) -> dict[str, Corpus]:
        """A tenant's corpora by their names."""
        return self._known.get(tenant, {})

    def drafts(self, tenant: str) -> list[str]:
        """What to add to a request's draft so that it uses them."""
        return [f"store:{corpus.name}" for corpus in self.of(tenant).values()]

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
