"""SGLang's external corpora and Graft's datastores: texts that many requests draft from.

SGLang's routes (`/add_external_corpus`, `/remove_external_corpus`, `/list_external_corpora`) call
the worker of an NGRAM server: an addition is built in a thread and committed by the scheduler's.
A corpus is a suffix array in memory, 6 or 8 bytes a token. A running request keeps the corpora that
it started with.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from graft.errors import InputError
from graft.match.store_build import shard_in_memory
from graft.match.store_files import Manifest, ShardArrays
from graft.match.suffix_array import Store

SEPARATOR = -(2**31)  # SGLang's token between documents


class Corpora:
    """Named corpora, and the shards of the datastores, which every request drafts from."""

    def __init__(self, vocabulary: int, shards: Sequence[ShardArrays] = ()) -> None:
        self._manifest, self._shards = Manifest("", "", vocabulary), list(shards)
        self._built: dict[str, ShardArrays] = {}
        self._named: dict[str, ShardArrays] = {}

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draft from."""
        return not (self._shards or self._named)

    def like(self, text: list[int]) -> "Corpora":
        """Others for the same vocabulary, with one corpus of this text."""
        found = Corpora(self._manifest.vocabulary)
        found.build("text", [text], len(text))
        found.commit("text")
        return found

    def build(self, name: str, chunks: Iterable[Sequence[int]], max_tokens: int) -> int:
        """Index a corpus of SGLang's chunks, also in another thread; the number of its tokens.
        All corpora together may have `max_tokens`."""
        if name in self._named or name in self._built:
            raise InputError(f"there is a corpus {name!r} already; remove it first")
        text = np.array([token for chunk in chunks for token in chunk], np.int64)
        documents = np.split(text, np.flatnonzero(text == SEPARATOR))
        documents = [each[each != SEPARATOR] for each in documents]
        count, left = sum(map(len, documents)), max_tokens - sum(self.counts().values())
        if not count:
            raise InputError(f"corpus {name!r} is empty")
        if text.max() >= self._manifest.vocabulary:
            raise InputError(f"corpus {name!r} has token ids that the model does not have")
        if count > left:
            raise InputError(
                f"corpus {name!r} has {count} tokens, and {max(left, 0)} of {max_tokens} are left; "
                "remove a corpus or raise --speculative-ngram-external-corpus-max-tokens"
            )
        self._built[name] = shard_in_memory(self._manifest, documents, threads=1)
        return count

    def commit(self, name: str) -> None:
        """Let new requests draft from a corpus that was built."""
        self._named[name] = self._built.pop(name)

    def remove(self, name: str) -> None:
        """Remove a corpus; InputError if there is none of that name."""
        if self._named.pop(name, None) is None:
            raise InputError(f"no corpus {name!r}; {self._listed()}")

    def counts(self) -> dict[str, int]:
        """The number of tokens of each corpus."""
        named = dict(self._named)  # `build` calls this in another thread
        return {name: len(shard.suffixes) for name, shard in named.items()}

    def check(self, names: Iterable[str]) -> None:
        """InputError for the first name that no corpus has."""
        for name in names:
            if name not in self._named:
                raise InputError(f"no corpus {name!r}; {self._listed()}")

    def store(self, names: Sequence[str] | None) -> Store:
        """The datastores and these corpora (None: all) as one store; unknown names are skipped."""
        chosen = self._named if names is None else names
        named = [self._named[name] for name in dict.fromkeys(chosen) if name in self._named]
        return Store(self._manifest, [*self._shards, *named])

    def _listed(self) -> str:
        return "there is none" if not self._named else f"there are {', '.join(self._named)}"
