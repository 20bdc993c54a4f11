"""Documents that were read before need not be read again, wherever they stand in a prompt.

A round of retrieval puts a prompt together from a fixed head, passages, the question and the text
so far, and most of the passages were there a round ago (IDR2, section 3.2: CICS). `prepare` joins
the parts, finds what is known of them and gives the engine rows to start from; the same token ids
in every mode, so that modes can be compared. Parts are tokenised apart: a passage has the same ids
whatever stands beside it.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from graft.assemble import rows_key_of
from graft.decode.engine import Engine
from graft.models.rotation import find_rotation, frequencies_name
from graft.rag.kept_rows import KeptRows, name_of
from graft.rag.parts import HEAD, PASSAGE, Part, PartReuse, checked
from graft.rag.prompt_rows import Piece, PromptRows
from graft.rag.reuse import Reuse

GIGABYTE = 1 << 30
DISK_BYTES = 4 * GIGABYTE
MOST_QUESTIONS = 4096  # that are remembered, if nobody says that they have ended
MOST_ORDERS = 4096  # of passages in earlier prompts


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt for `PreparedRequest(Request(prepared.tokens), prepared.rows)`.

    `parts` are in the prompt's order, which `reordered` says is not the one that was asked for.
    What the engine's own prefix cache adds to it stands in the result's statistics.
    """

    tokens: list[int]
    rows: PromptRows
    parts: tuple[PartReuse, ...]
    reordered: bool = False

    @property
    def approximate(self) -> bool:
        """Whether rows are reused that the model would not compute itself."""
        return self.rows.approximate


@dataclass(slots=True)
class KindStatistics:
    """Parts of a kind in all prompts so far: how many, and their tokens by where rows come from."""

    parts: int = 0
    exact_hits: int = 0
    approximate_hits: int = 0
    exact_tokens: int = 0
    approximate_tokens: int = 0
    computed_tokens: int = 0

    def count(self, part: PartReuse) -> None:
        """One more."""
        self.parts += 1
        self.exact_hits += part.exact > 0
        self.approximate_hits += part.approximate > 0
        self.exact_tokens += part.exact
        self.approximate_tokens += part.approximate
        self.computed_tokens += part.computed

    @property
    def hits(self) -> int:
        """Parts whose rows were known, exactly or not."""
        return self.exact_hits + self.approximate_hits

    @property
    def hit_rate(self) -> float:
        """Their share."""
        return self.hits / self.parts if self.parts else 0.0


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """`head` and `passages` apart: a fixed head is cached by everybody."""

    head: KindStatistics
    passages: KindStatistics
    entries: int
    memory_bytes: int
    disk_bytes: int
    evicted: int
    spilled: int


@dataclass(slots=True)
class _Plan:
    """A prompt while its pieces are found."""

    pieces: list[Piece] = field(default_factory=list)
    parts: list[PartReuse] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    before: str = ""  # name of the text so far
    head: int = 0
    head_name: str = ""
    exact: bool = True  # so far

    def add(self, part: Part, piece: Piece, name: str) -> None:
        """`part` comes next; `name` is that of the text up to its end."""
        known = 0 if piece.entry is None else len(part.tokens)
        exact, approximate = (known, 0) if piece.exact else (0, known)
        self.parts.append(PartReuse(part.kind, part.id, len(part.tokens), exact, approximate))
        self.pieces.append(piece)
        self.tokens.extend(part.tokens)
        self.before, self.exact = name, self.exact and piece.exact
        if part.kind == HEAD:
            self.head, self.head_name = len(self.tokens), name


class DocumentCache:
    """Rows of the parts of prompts for an engine, `most_bytes` in memory; with a `folder` those
    that must give way go to disk, `disk_bytes` of them. May be used by many threads.
    """

    def __init__(
        self,
        engine: Engine,
        reuse: Reuse | None = None,
        *,
        most_bytes: int = GIGABYTE,
        folder: Path | str | None = None,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        self.reuse = reuse or Reuse()
        self._rotation = None
        if self.reuse.approximate:
            self._rotation = engine.exclusive(lambda: find_rotation(engine.model))
        self._key = f"{rows_key_of(engine.loaded)}-{frequencies_name(engine.model)}"
        self._kept = KeptRows(
            self._key,
            most_bytes=most_bytes,
            folder=Path(folder).expanduser() if folder else None,
            disk_bytes=disk_bytes,
        )
        self._door = threading.Lock()
        self._questions: OrderedDict[str, dict[bytes, tuple[str, int]]] = OrderedDict()
        self._orders: OrderedDict[tuple[bytes, ...], None] = OrderedDict()
        self._counted = {HEAD: KindStatistics(), PASSAGE: KindStatistics()}

    def prepare(self, parts: Sequence[tuple], question: str = "") -> Prepared:
        """Join parts (kind, token ids, id) to a prompt; see `parts.Part`.

        `question` tells apart whose earlier prompts may be used where `scope` is "question".
        """
        asked = checked(parts)
        ordered = self._order(asked, question) if self.reuse.reorder else asked
        plan = _Plan()
        for place, part in enumerate(ordered):
            last = place == len(ordered) - 1  # is computed in any case: its logits are needed
            self._plan_part(plan, part, question, last=last)
        with self._door:
            for part in plan.parts:
                if part.kind in self._counted:
                    self._counted[part.kind].count(part)
        rows = PromptRows(
            plan.tokens, plan.pieces, plan.head, self._shareable(plan),
            self._kept, self._rotation, self.reuse,
        )  # fmt: skip
        return Prepared(plan.tokens, rows, tuple(plan.parts), ordered != asked)

    def forget(self, question: str = "") -> None:
        """A question has ended: what only its own prompts may use goes."""
        with self._door:
            known = self._questions.pop(question, {})
        for name, _ in known.values():
            if name.startswith(_TIED):
                self._kept.drop(name)

    def flush(self) -> None:
        """Write to disk what only lies in memory, for the next process."""
        self._kept.flush()

    def statistics(self) -> CacheStatistics:
        """Hits and sizes so far."""
        kept = self._kept
        with self._door:
            return CacheStatistics(
                replace(self._counted[HEAD]), replace(self._counted[PASSAGE]), len(kept),
                kept.bytes, kept.disk_bytes, kept.evicted, kept.spilled,
            )  # fmt: skip

    def _plan_part(self, plan: _Plan, part: Part, question: str, *, last: bool) -> None:
        """Where the rows of the next part come from."""
        tokens = np.asarray(part.tokens, np.int32)
        first, end = len(plan.tokens), len(plan.tokens) + len(tokens)
        name = name_of(self._key, plan.before, tokens)
        mode, piece = self.reuse.mode, Piece(first, end, exact=plan.exact)
        if last or part.kind not in self._counted or (mode == "off" and not self._is_head(part)):
            pass
        elif self._may_be_exact(plan) and (entry := self._kept.get(name, tokens, first)):
            piece = Piece(first, end, entry)
            self._remember(question, tokens, entry.name, first, part)
        elif part.kind == HEAD or not self.reuse.approximate:
            piece = Piece(first, end, name=name)
        elif self.reuse.scope == "all":
            piece = self._after_head(plan, tokens, first)
        else:
            piece = self._in_question(plan, part, question, name)
        plan.add(part, piece, name)

    def _may_be_exact(self, plan: _Plan) -> bool:
        """With scope "all" never behind the first passage: what else was read before must not
        show."""
        apart = self.reuse.approximate and self.reuse.scope == "all"
        return plan.exact and not (apart and len(plan.tokens) > plan.head)

    def _is_head(self, part: Part) -> bool:
        return self.reuse.head and part.kind == HEAD

    def _after_head(self, plan: _Plan, tokens: np.ndarray, first: int) -> Piece:
        """A passage as it is after the head alone, which for the first one is its place."""
        end, name = first + len(tokens), name_of(self._key, plan.head_name, tokens)
        if first == plan.head:
            return Piece(first, end, name=name)
        entry = self._kept.get(name, tokens, plan.head)
        return Piece(first, end, entry, exact=False, apart=True, name=name)

    def _in_question(self, plan: _Plan, part: Part, question: str, name: str) -> Piece:
        """A passage as it was in an earlier prompt of the question, else to be computed here."""
        tokens = np.asarray(part.tokens, np.int32)
        first, end = len(plan.tokens), len(plan.tokens) + len(tokens)
        with self._door:
            known = self._questions.get(question, {}).get(tokens.tobytes())
        entry = self._kept.get(known[0], tokens, known[1]) if known else None
        if entry:
            return Piece(first, end, entry, exact=False)
        if not plan.exact:
            name = _TIED + name_of(f"{self._key}\n{question}", plan.before, tokens)
        self._remember(question, tokens, name, first, part)
        return Piece(first, end, exact=plan.exact, name=name)

    def _remember(
        self, question: str, tokens: np.ndarray, name: str, first: int, part: Part
    ) -> None:
        """A question's passage has rows of this name, or will have when it has been read."""
        if part.kind != PASSAGE or self.reuse.scope == "all" or not self.reuse.approximate:
            return
        with self._door:
            self._questions.setdefault(question, {})[tokens.tobytes()] = (name, first)
            self._questions.move_to_end(question)
            dropped = len(self._questions) > MOST_QUESTIONS and next(iter(self._questions))
        if dropped:
            self.forget(dropped)

    def _shareable(self, plan: _Plan) -> int | None:
        """How many of the first tokens the engine's prefix cache may have and give."""
        if self.reuse.mode == "off":
            return plan.head if self.reuse.head else 0
        return next((piece.first for piece in plan.pieces if not piece.exact), None)

    def _order(self, parts: list[Part], question: str) -> list[Part]:
        """Passages that are known first: in the order of an earlier prompt where rows must be
        exact, else in the order in which they became known; the others follow as they were."""
        passages = [part for part in parts if part.kind == PASSAGE]
        by_text = {_bytes(part): part for part in passages}
        with self._door:
            if self.reuse.approximate:
                known = [text for text in self._questions.get(question, {}) if text in by_text]
            else:
                known = list(max((_begin(o, by_text) for o in self._orders), key=len, default=()))
        leading = [by_text[text] for text in dict.fromkeys(known)]
        rest = iter([*leading, *(p for p in passages if not any(p is each for each in leading))])
        ordered = [next(rest) if part.kind == PASSAGE else part for part in parts]
        with self._door:
            order = tuple(_bytes(part) for part in ordered if part.kind == PASSAGE)
            self._orders[order] = None
            self._orders.move_to_end(order)
            if len(self._orders) > MOST_ORDERS:
                self._orders.popitem(last=False)
        return ordered


_TIED = "approximate-"  # names of rows that only prompts of one question may use


def _bytes(part: Part) -> bytes:
    return np.asarray(part.tokens, np.int32).tobytes()


def _begin(order: tuple[bytes, ...], among: dict[bytes, Part]) -> tuple[bytes, ...]:
    """The first passages of an order that are all among these."""
    end = next((i for i, text in enumerate(order) if text not in among), len(order))
    return order[:end]
