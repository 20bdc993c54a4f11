"""A cache of the keys and values of passages, reused wherever they are in a prompt.

The prompt of a retrieval round has a fixed head, passages, the question and the text so far; most
passages were in the round before (IDR2, section 3.2: CICS). `prepare` joins the parts and gives the
engine their cached rows. The token ids are the same in every mode, so that modes can be compared.
Parts are tokenized separately: a passage has the same ids in every prompt.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from graft.assemble.loading import rows_key_of
from graft.decode.engine import Engine
from graft.models.rotation import find_rotation, frequencies_name
from graft.rag.parts import HEAD, PASSAGE, Part, PartReuse, checked
from graft.rag.prompt_rows import Piece, PromptRows
from graft.rag.reuse import DISK_BYTES, Reuse, as_reuse
from graft.rag.row_cache import RowCache, entry_name

GIGABYTE = 1 << 30
MAX_QUESTIONS = 4096  # with rows of their own that have not ended
MAX_ORDERS = 4096  # of passages in earlier prompts
_QUESTION_ONLY = "approximate-"  # prefix of names of rows that only one question may use


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt for `PreparedRequest(Request(prepared.tokens), prepared.rows)`.

    `parts` are in the prompt's order; `reordered` if that is not the given one. Tokens that the
    engine's prefix cache adds are in the statistics of the result.
    """

    tokens: list[int]
    rows: PromptRows
    parts: tuple[PartReuse, ...]
    reordered: bool = False

    @property
    def approximate(self) -> bool:
        """Whether some reused rows differ from those that the model would compute."""
        return self.rows.approximate


@dataclass(slots=True)
class KindStatistics:
    """Parts of a kind in all prompts so far, and their tokens by source of the rows."""

    parts: int = 0
    exact_hits: int = 0
    approximate_hits: int = 0
    exact_tokens: int = 0
    approximate_tokens: int = 0
    computed_tokens: int = 0

    def count(self, part: PartReuse) -> None:
        """Count one part."""
        self.parts += 1
        self.exact_hits += part.exact > 0
        self.approximate_hits += part.approximate > 0
        self.exact_tokens += part.exact
        self.approximate_tokens += part.approximate
        self.computed_tokens += part.computed

    @property
    def hits(self) -> int:
        """Parts with cached rows, exact or approximate."""
        return self.exact_hits + self.approximate_hits


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Statistics of the head, which every request shares, and of the passages."""

    head: KindStatistics
    passages: KindStatistics
    entries: int
    memory_bytes: int
    disk_bytes: int
    evicted: int
    spilled: int


@dataclass(slots=True)
class _Plan:
    """A prompt while its pieces are looked up."""

    pieces: list[Piece] = field(default_factory=list)
    parts: list[PartReuse] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    name: str = ""  # of the text so far
    head: int = 0
    head_name: str = ""
    exact: bool = True  # so far

    def add(self, part: Part, piece: Piece, name: str) -> None:
        """Append `part`; `name` is that of the text up to its end."""
        cached = 0 if piece.entry is None else len(part.tokens)
        exact, approximate = (cached, 0) if piece.exact else (0, cached)
        self.parts.append(PartReuse(part.kind, part.id, len(part.tokens), exact, approximate))
        self.pieces.append(piece)
        self.tokens.extend(part.tokens)
        self.name, self.exact = name, self.exact and piece.exact
        if part.kind == HEAD:
            self.head, self.head_name = len(self.tokens), name


class DocumentCache:
    """Cached rows of prompt parts for an engine: at most `max_bytes` in memory; with a `folder`,
    evicted ones go to disk, at most `disk_bytes`. Many threads may use it.
    """

    def __init__(
        self,
        engine: Engine,
        reuse: Reuse | None = None,
        *,
        max_bytes: int = GIGABYTE,
        folder: Path | str | None = None,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        self.reuse = reuse or Reuse()
        self._rotation = None
        if engine.model.has_states and not self.reuse.approximate:
            self.reuse = as_reuse("off")  # rows alone do not continue a text
        if self.reuse.approximate:
            engine.model.require_rows_only("approximate reuse of passages")
            self._rotation = engine.exclusive(lambda: find_rotation(engine.model))
        self._key = f"{rows_key_of(engine.loaded)}-{frequencies_name(engine.model)}"
        self._rows = RowCache(
            self._key,
            max_bytes=max_bytes,
            folder=Path(folder).expanduser() if folder else None,
            disk_bytes=disk_bytes,
        )
        self._lock = threading.Lock()
        self._questions: OrderedDict[str, dict[bytes, tuple[str, int]]] = OrderedDict()
        self._orders: OrderedDict[tuple[bytes, ...], None] = OrderedDict()
        self._counted = {HEAD: KindStatistics(), PASSAGE: KindStatistics()}

    def prepare(self, parts: Sequence[tuple], question: str = "") -> Prepared:
        """Join parts (kind, token ids, id) to a prompt; see `parts.Part`.

        With scope "question" only rows of earlier prompts of the same `question` are reused.
        """
        given = checked(parts)
        ordered = self._order(given, question) if self.reuse.reorder else given
        plan = _Plan()
        for place, part in enumerate(ordered):
            last = place == len(ordered) - 1  # always computed: its logits are needed
            self._plan_part(plan, part, question, last=last)
        with self._lock:
            for counted in plan.parts:
                if counted.kind in self._counted:
                    self._counted[counted.kind].count(counted)
        rows = PromptRows(
            plan.tokens, plan.pieces, plan.head, self._shareable(plan),
            self._rows, self._rotation, self.reuse,
        )  # fmt: skip
        return Prepared(plan.tokens, rows, tuple(plan.parts), ordered != given)

    def end(self, question: str = "") -> None:
        """Free the rows that only this question may use, and write the others to the folder."""
        self._forget(question)
        self._rows.flush()

    def _forget(self, question: str) -> None:
        with self._lock:
            passages = self._questions.pop(question, {})
        for name, _ in passages.values():
            if name.startswith(_QUESTION_ONLY):
                self._rows.drop(name)

    def statistics(self) -> CacheStatistics:
        """Hits and sizes so far."""
        rows = self._rows
        with self._lock:
            return CacheStatistics(
                replace(self._counted[HEAD]), replace(self._counted[PASSAGE]), len(rows),
                rows.bytes, rows.disk_bytes, rows.evicted, rows.spilled,
            )  # fmt: skip

    def _plan_part(self, plan: _Plan, part: Part, question: str, *, last: bool) -> None:
        """Look up the rows of the next part and append it to the plan."""
        tokens = np.asarray(part.tokens, np.int32)
        name = entry_name(self._key, plan.name, tokens)
        if last or not self._is_cached(part):
            first = len(plan.tokens)
            piece = Piece(first, first + len(tokens), exact=plan.exact)
        else:
            piece = self._cached_piece(plan, part, tokens, name, question)
        plan.add(part, piece, name)

    def _is_cached(self, part: Part) -> bool:
        """Whether parts of this kind are cached."""
        if self.reuse.mode == "off":
            return self.reuse.head and part.kind == HEAD
        return part.kind in self._counted

    def _cached_piece(
        self, plan: _Plan, part: Part, tokens: np.ndarray, name: str, question: str
    ) -> Piece:
        """A piece with rows from the cache, or to be computed and cached."""
        first, end = len(plan.tokens), len(plan.tokens) + len(tokens)
        if self._may_be_exact(plan) and (entry := self._rows.get(name, tokens, first)):
            self._record(question, tokens, entry.name, first, part)
            return Piece(first, end, entry)
        if part.kind == HEAD or not self.reuse.approximate:
            return Piece(first, end, name=name)
        if self.reuse.scope == "all":
            return self._after_head(plan, tokens, first)
        return self._in_question(plan, part, tokens, name, question)

    def _may_be_exact(self, plan: _Plan) -> bool:
        """With scope "all" only up to the first passage, so that other prompts change no answer."""
        apart = self.reuse.approximate and self.reuse.scope == "all"
        return plan.exact and not (apart and len(plan.tokens) > plan.head)

    def _after_head(self, plan: _Plan, tokens: np.ndarray, first: int) -> Piece:
        """A passage as computed after the head only; the first passage is there anyway."""
        end, name = first + len(tokens), entry_name(self._key, plan.head_name, tokens)
        if first == plan.head:
            return Piece(first, end, name=name)
        entry = self._rows.get(name, tokens, plan.head)
        return Piece(first, end, entry, exact=False, apart=True, name=name)

    def _in_question(
        self, plan: _Plan, part: Part, tokens: np.ndarray, name: str, question: str
    ) -> Piece:
        """A passage of an earlier prompt of the question, else to be computed in place."""
        first, end = len(plan.tokens), len(plan.tokens) + len(tokens)
        with self._lock:
            recorded = self._questions.get(question, {}).get(tokens.tobytes())
        entry = self._rows.get(recorded[0], tokens, recorded[1]) if recorded else None
        if entry:
            return Piece(first, end, entry, exact=False)
        if not plan.exact:
            name = _QUESTION_ONLY + entry_name(f"{self._key}\n{question}", plan.name, tokens)
        self._record(question, tokens, name, first, part)
        return Piece(first, end, exact=plan.exact, name=name)

    def _record(self, question: str, tokens: np.ndarray, name: str, first: int, part: Part) -> None:
        """Record the name of the rows of a question's passage."""
        if part.kind != PASSAGE or self.reuse.scope == "all" or not self.reuse.approximate:
            return
        with self._lock:
            self._questions.setdefault(question, {})[tokens.tobytes()] = (name, first)
            self._questions.move_to_end(question)
            dropped = len(self._questions) > MAX_QUESTIONS and next(iter(self._questions))
        if dropped:
            self._forget(dropped)

    def _shareable(self, plan: _Plan) -> int | None:
        """The number of first tokens that may be in the engine's prefix cache; None: all."""
        if self.reuse.mode == "off":
            return plan.head if self.reuse.head else 0
        return next((piece.first for piece in plan.pieces if not piece.exact), None)

    def _order(self, parts: list[Part], question: str) -> list[Part]:
        """Cached passages first, in the order of an earlier prompt if rows must be exact, else in
        the order of caching; then the others in the given order."""
        passages = [part for part in parts if part.kind == PASSAGE]
        by_text = {_bytes(part): part for part in passages}
        with self._lock:
            if self.reuse.approximate:
                cached = [text for text in self._questions.get(question, {}) if text in by_text]
            else:
                longest = max((_begin(o, by_text) for o in self._orders), key=len, default=())
                cached = list(longest)
        leading = [by_text[text] for text in dict.fromkeys(cached)]
        rest = iter([*leading, *(p for p in passages if not any(p is each for each in leading))])
        ordered = [next(rest) if part.kind == PASSAGE else part for part in parts]
        with self._lock:
            order = tuple(_bytes(part) for part in ordered if part.kind == PASSAGE)
            self._orders[order] = None
            self._orders.move_to_end(order)
            if len(self._orders) > MAX_ORDERS:
                self._orders.popitem(last=False)
        return ordered


def _bytes(part: Part) -> bytes:
    return np.asarray(part.tokens, np.int32).tobytes()


def _begin(order: tuple[bytes, ...], among: dict[bytes, Part]) -> tuple[bytes, ...]:
    """The longest beginning of an order whose passages are all in `among`."""
    end = next((i for i, text in enumerate(order) if text not in among), len(order))
    return order[:end]
