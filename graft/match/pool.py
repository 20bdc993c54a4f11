"""Answers of earlier requests as a drafting source that grows while serving.

Each key (API key, cache salt) has a pool of its own: no request sees another key's text, and no
draft depends on it. A pool is a list of segments (`pool_segments.py`). Answers are appended to the
newest; a full one is followed by a larger one, up to a sixth of the maximum. The maximum holds for
all pools together: beyond it the segment that was appended to longest ago is dropped, so memory is
at most `max_tokens` times TOKEN_BYTES. With a folder every segment has a file (`pool_files.py`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graft.errors import InputError
from graft.match.continuations import Continuations
from graft.match.hash_table import BORDER
from graft.match.matches import Matches
from graft.match.pool_files import PoolFolder, SegmentFile, key_name
from graft.match.pool_segments import (
    MAX_MATCH,
    MAX_PLACES,
    MAX_SEGMENTS,
    SHORT,
    TEXT,
    append,
    count_continuations,
    make_segment,
)

FIRST_SEGMENT = 1 << 12  # tokens; each next one has four times as many
SHARE = 6  # a segment has at most 1 / SHARE of all tokens: so much is dropped at a time
MIN_TOKENS = 64 * SHARE
DEFAULT_TOKENS = 1 << 22  # 84 MB
DEPTH = 32  # tokens of a continuation
IN_POOL = -2  # the position of a token of a pool: not in the running text

_NOTHING = Matches(np.empty((6, 0), np.int32), np.empty(0, np.float32))
_UNUSED = make_segment(1)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What a pool keeps: up to `max_tokens` tokens of answers and, with `prompts`, of prompts; in
    memory, or also in `folder`, so that the next process has them."""

    folder: str | Path | None = None
    max_tokens: int = DEFAULT_TOKENS
    prompts: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < MIN_TOKENS:
            raise InputError(f"a pool needs at least {MIN_TOKENS} tokens, not {self.max_tokens}")


class _Segment:
    __slots__ = ("age", "array", "file", "size")

    def __init__(self, capacity: int) -> None:
        self.array = make_segment(capacity)
        self.size = self.age = 0
        self.file: SegmentFile | None = None

    @property
    def capacity(self) -> int:
        return self.array.shape[1]

    def append(self, tokens: np.ndarray) -> None:
        append(self.array, self.size, tokens)
        self.size += len(tokens) + 1


class Pool:
    """The texts of one key, newest segment first."""

    def __init__(self) -> None:
        self.segments: list[_Segment] = []
        self.arrays = (_UNUSED,) * MAX_SEGMENTS  # for compiled code

    @property
    def capacity(self) -> int:
        """Tokens that memory is reserved for."""
        return sum(segment.capacity for segment in self.segments)

    def texts(self) -> Iterable[np.ndarray]:
        """All texts, oldest first."""
        for segment in reversed(self.segments):
            text = segment.array[TEXT, : segment.size]
            parts = np.split(text, np.flatnonzero(text == BORDER) + 1)
            yield from (part[:-1] for part in parts[:-1])

    def changed(self) -> None:
        """Prepare lookups after a segment was added or dropped."""
        unused = [_UNUSED] * (MAX_SEGMENTS - len(self.segments))
        self.arrays = (*(segment.array for segment in self.segments), *unused)

    def index(self) -> "PoolIndex":
        """A TokenIndex over the pool for one running text."""
        return PoolIndex(self)


class Pools:
    """The pools of all keys; used by the thread that makes a step."""

    def __init__(self, options: PoolOptions | None = None, tokenizer: str = "") -> None:
        self.options = options or PoolOptions()
        self._max_segment = self.options.max_tokens // SHARE
        self._pools: dict[str, Pool] = {}
        self._clock = 0
        self._folder = None
        if self.options.folder is not None:
            self._folder = PoolFolder(Path(self.options.folder).expanduser(), tokenizer)
            self._load(self._folder)

    @property
    def capacity(self) -> int:
        """Tokens that memory is reserved for."""
        return sum(pool.capacity for pool in self._pools.values())

    def of(self, salt: str) -> Pool:
        """A key's pool."""
        return self._pools.setdefault(key_name(salt), Pool())

    def add(self, salt: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Append a text to a key's pool."""
        text = np.asarray(tokens, np.int32)[-(self._max_segment - 1) :]
        if len(text) <= SHORT:  # nothing to find, nothing to copy
            return
        segment = self._append(key_name(salt), text)
        if segment.file:
            segment.file.append(text)

    def close(self) -> None:
        """Write everything to disk; further texts stay in memory."""
        for pool in self._pools.values():
            for segment in pool.segments:
                if segment.file:
                    segment.file.close()
                    segment.file = None
        if self._folder:
            self._folder.release()

    def _append(self, name: str, text: np.ndarray) -> _Segment:
        pool = self._pools.setdefault(name, Pool())
        newest = pool.segments[0] if pool.segments else None
        if newest is None or newest.size + len(text) + 1 > newest.capacity:
            if newest and newest.file:
                newest.file.close()
            after = newest.capacity + 1 if newest else 1
            newest = self._new_segment(pool, self._capacity_for(after, len(text) + 1))
            if self._folder:
                newest.file = self._folder.new_segment(name)
        newest.append(text)
        self._touch(newest)
        return newest

    def _capacity_for(self, wanted: int, needed: int) -> int:
        """The first of the growing capacities with `wanted` tokens, and at least `needed`."""
        capacity = FIRST_SEGMENT
        while capacity < wanted:
            capacity *= 4
        return max(min(capacity, self._max_segment), needed)

    def _touch(self, segment: _Segment) -> None:
        self._clock += 1
        segment.age = self._clock

    def _new_segment(self, pool: Pool, capacity: int) -> _Segment:
        """Add a segment, after dropping the oldest ones beyond the maximum."""
        while len(pool.segments) >= MAX_SEGMENTS:
            self._drop(pool, pool.segments[-1])
        while self.capacity + capacity > self.options.max_tokens:
            owner, oldest = min(
                ((each, segment) for each in self._pools.values() for segment in each.segments),
                key=lambda pair: pair[1].age,
            )
            self._drop(owner, oldest)
        segment = _Segment(capacity)
        pool.segments.insert(0, segment)
        pool.changed()
        return segment

    def _drop(self, pool: Pool, segment: _Segment) -> None:
        pool.segments.remove(segment)
        pool.changed()
        if segment.file:
            segment.file.delete()

    def _load(self, folder: PoolFolder) -> None:
        """A segment of every file, the one written to last at the end.

        A key's last one has space for as many tokens as the others together: if segments grew from
        the smallest again, a few starts would exceed `MAX_SEGMENTS`.
        """
        files = list(folder.read())
        last = {name: number for number, (name, _, _) in enumerate(files)}
        for number, (name, file, texts) in enumerate(files):
            while texts and sum(map(len, texts)) + len(texts) > self._max_segment:
                texts.pop(0)
            pool = self._pools.setdefault(name, Pool())
            size = sum(map(len, texts)) + len(texts)
            held = sum(each.size for each in pool.segments)
            wanted = max(size, held) if number == last[name] else size
            segment = self._new_segment(pool, self._capacity_for(wanted, size))
            segment.file = file
            for text in texts:
                segment.append(text)
            self._touch(segment)


class PoolIndex:
    """A TokenIndex over a pool: continuations of the longest match, as a trie."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._recent: list[int] = []
        self._places = np.empty((MAX_PLACES, 3), np.int32)
        self._trie: Continuations | None = None  # made at the first match

    def extend(self, tokens: list[int] | np.ndarray) -> None:
        """Append tokens to the running text."""
        new = tokens if isinstance(tokens, list) else tokens.tolist()
        self._recent = [*self._recent, *new[-MAX_MATCH:]][-MAX_MATCH:]

    def border(self) -> None:
        """End a document."""
        self._recent.clear()

    def lookup(self, limit: int, confidence: np.ndarray, after: Sequence[int] = ()) -> Matches:
        """See TokenIndex; positions are IN_POOL."""
        pool = self._pool
        if not pool.segments:
            return _NOTHING
        if self._trie is None:
            self._trie = Continuations(MAX_PLACES, DEPTH)
        end = np.array([*self._recent, *after][-MAX_MATCH:] if after else self._recent, np.int32)
        self._trie.clear()
        arrays = self._trie.arrays
        matched = count_continuations(pool.arrays, end, self._places, arrays, DEPTH)
        if not matched:
            return _NOTHING
        found = self._trie.best(limit, matched, confidence)
        found.positions[:] = IN_POOL
        return found

    @classmethod
    def warm_up(cls) -> None:
        """Compile the index, or load it from numba's cache, before the first request."""
        pools = Pools()
        pools.add("", np.zeros(2 * MAX_MATCH, np.int32))
        index = pools.of("").index()
        index.extend(np.zeros(MAX_MATCH, np.int32))
        index.lookup(4, np.ones(2))
