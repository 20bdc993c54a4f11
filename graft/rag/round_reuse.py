"""What a round takes over from what was read before.

A round's prompt comes in parts. Whoever reuses says in which order and with which options they go
to the engine; after the call the session tells how many tokens of each kind were not read again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.rag.document_cache import DISK_BYTES, DocumentCache
from graft.rag.parts import HEAD, Part
from graft.rag.reuse import Reuse


@dataclass(frozen=True, slots=True)
class Handed:
    """What goes to the engine: the parts in their order, and options of the `PreparedRequest`.

    `known` says of each part how many tokens have rows that are exactly the model's own, whatever
    the prefix cache holds; None: of none. `reordered`: passages stand in another order than asked.
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
    """A way to reuse. `approximate`: answers may differ from those of `off`. `keeps_head`: it pays
    to read the demonstrations before the first question."""

    name: str
    approximate: bool
    keeps_head: bool

    def hand(self, parts: Sequence[Part], question: str) -> Handed:
        """What to give the engine for these parts; `question` tells whose they are."""

    def end(self, question: str) -> None:
        """A question has been answered."""


@dataclass(frozen=True, slots=True)
class ReadAnew:
    """Every prompt is read anew and leaves nothing behind."""

    name: str = "off"
    approximate: bool = False
    keeps_head: bool = False

    def hand(self, parts: Sequence[Part], question: str) -> Handed:  # noqa: ARG002
        """See RoundReuse."""
        return Handed(parts, {"max_cached": 0})

    def end(self, question: str) -> None:
        """See RoundReuse; nothing was kept."""


class DocumentReuse:
    """Through a cache of documents, which sessions may share; and through the engine's own cache of
    prefixes, as far as that is exact."""

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
        """See RoundReuse; with a folder, what may be used again is written there."""
        self.cache.forget(question)
        self.cache.flush()


def reuse_for(
    engine: Engine,
    reuse: Reuse,
    *,
    folder: Path | str | None = None,
    disk_bytes: int = DISK_BYTES,
) -> RoundReuse:
    """Reuse as chosen, with a cache of its own where it needs one; with a `folder` also on disk."""
    if reuse.mode == "off" and not reuse.head:
        if folder is not None:
            raise InputError("reuse off keeps nothing on disk; choose demos, exact or cics")
        return ReadAnew()
    return DocumentReuse(DocumentCache(engine, reuse, folder=folder, disk_bytes=disk_bytes))


def reused(handed: Handed, cached: int) -> dict[str, int]:
    """Tokens that were exactly known and not read again, by kind of part; the demonstrations are
    "demonstrations".

    `cached` counts them all: those of known parts, and what the prefix cache had of the others.
    """
    known = handed.known or [0] * len(handed.parts)
    found = max(0, cached - sum(known))  # by the prefix cache, from the first part on
    counts: Counter[str] = Counter()
    for part, own in zip(handed.parts, known, strict=True):
        more = min(found, len(part.tokens) - own)
        found -= more
        counts[part.id if part.kind == HEAD else part.kind] += own + more
    return {kind: count for kind, count in counts.items() if count}
