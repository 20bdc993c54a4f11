"""KV cache reuse of a round's prompt: the order of its parts, and the engine options."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.rag.document_cache import DocumentCache
from graft.rag.parts import HEAD, Part
from graft.rag.reuse import DISK_BYTES, Reuse


@dataclass(frozen=True, slots=True)
class Handed:
    """What goes to the engine: the parts in their order, and options of the `PreparedRequest`.

    `known` has the number of cached tokens with exact rows of each part, without the prefix cache;
    None: no part has any. `reordered`: the passages are in another order than given.
    """

    parts: Sequence[Part]
    options: Mapping[str, Any] = field(default_factory=dict)
    known: Sequence[int] | None = None
    reordered: bool = False

    @property
    def tokens(self) -> list[int]:
        """The prompt."""
        return [token for part in self.parts for token in part.tokens]


class RoundReuse(Protocol):
    """A mode of reuse. `approximate`: answers may differ from those of `off`. `keeps_head`: the
    demonstrations are cached, so they are prefilled before the first question."""

    name: str
    approximate: bool
    keeps_head: bool

    def hand(self, parts: Sequence[Part], question: str) -> Handed:
        """The prompt of these parts, which belong to `question`."""

    def end(self, question: str) -> None:
        """A question is answered: free what only it uses."""


@dataclass(frozen=True, slots=True)
class NoReuse:
    """Every prompt is computed and nothing is cached."""

    name: str = "off"
    approximate: bool = False
    keeps_head: bool = False

    def hand(self, parts: Sequence[Part], question: str) -> Handed:  # noqa: ARG002
        """See RoundReuse."""
        return Handed(parts, {"max_cached": 0})

    def end(self, question: str) -> None:
        """See RoundReuse; nothing is cached."""


class DocumentReuse:
    """Reuse through a document cache, which sessions may share, and the engine's prefix cache."""

    def __init__(self, cache: DocumentCache) -> None:
        self.cache = cache
        self.name, self.approximate = cache.reuse.name, cache.reuse.approximate
        self.keeps_head = cache.reuse.head or cache.reuse.mode != "off"

    def hand(self, parts: Sequence[Part], question: str) -> Handed:
        """See RoundReuse."""
        prepared = self.cache.prepare(parts, question)
        borders = accumulate((part.tokens for part in prepared.parts), initial=0)
        ordered = [
            Part(part.kind, prepared.tokens[first:end], part.id)
            for part, (first, end) in zip(prepared.parts, pairwise(borders), strict=True)
        ]
        known = [part.exact for part in prepared.parts]
        return Handed(ordered, {"rows": prepared.rows}, known, prepared.reordered)

    def end(self, question: str) -> None:
        """See RoundReuse; with a folder, rows that can be reused are written there."""
        self.cache.forget(question)
        self.cache.flush()


def reuse_for(
    engine: Engine,
    reuse: Reuse,
    *,
    folder: Path | str | None = None,
    disk_bytes: int = DISK_BYTES,
) -> RoundReuse:
    """The reuse with a document cache of its own if it needs one; with a `folder` also on disk."""
    if reuse.mode == "off" and not reuse.head:
        if folder is not None:
            raise InputError("reuse off caches nothing on disk; choose demos, exact or cics")
        return NoReuse()
    return DocumentReuse(DocumentCache(engine, reuse, folder=folder, disk_bytes=disk_bytes))


def reused(handed: Handed, cached: int) -> dict[str, int]:
    """Cached tokens with exact rows by kind of part; parts of the head by their id.

    `cached` is their total: those of known parts, and what the prefix cache has of the others.
    """
    known = handed.known or [0] * len(handed.parts)
    in_prefix = max(0, cached - sum(known))  # from the first part on
    counts: Counter[str] = Counter()
    for part, own in zip(handed.parts, known, strict=True):
        more = min(in_prefix, len(part.tokens) - own)
        in_prefix -= more
        counts[part.id if part.kind == HEAD else part.kind] += own + more
    return {kind: count for kind, count in counts.items() if count}
