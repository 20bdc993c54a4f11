"""Which requests run, which prompt tokens a step prefills, and what a step costs."""

import threading
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from graft.decode.sequence import Sequence
from graft.draft.drafter import DraftContext
from graft.models.arena import ROWS_AHEAD, OutOfRowsError
from graft.models.language_model import LanguageModel
from graft.models.step_costs import StepCosts

MAX_SLOWDOWN = 3  # of a streamed token's time, by prompts that are prefilled in the same steps
MIN_CHUNK = 8  # prompt tokens that a step prefills whatever they cost
MIN_SHARE = 0.02  # of a step's time that is counted as decoding when the step also prefills
LENGTH_STEP = 64  # context lengths are rounded down to it, so that cost lookups repeat

Chunk = tuple[Sequence, list[int]]  # a sequence and the prompt tokens it prefills in this step


class Scheduler:
    """Runs at most `max_batch` sequences at once, first come, first served.

    Any thread may call `add`; everything else is for the thread that makes the step.
    """

    def __init__(self, model: LanguageModel, *, max_batch: int, spare_rows: int) -> None:
        # Learns from a finished sequence and its answer
        self.learn: Callable[[DraftContext, list[int]], None] | None = None
        self._model, self.max_batch, self._spare = model, max_batch, spare_rows
        self._waiting: deque[Sequence] = deque()
        self._lock = threading.Lock()  # of _waiting
        self._running: list[Sequence] = []

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences."""
        with self._lock:
            self._waiting.extend(sequences)

    @property
    def running(self) -> int:
        """The number of sequences that hold KV cache rows."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of queued sequences."""
        return len(self._waiting)

    @property
    def prefilling(self) -> list[Sequence]:
        """Running sequences whose prompt is not in the KV cache yet."""
        return [each for each in self._running if not each.context.tokens]

    @property
    def decoding(self) -> list[Sequence]:
        """Running sequences that get a token in the next step."""
        return [each for each in self._running if each.context.tokens and not each.paused]

    def is_settled(self, sequences: list[Sequence]) -> bool:
        """Whether the next step is one of exactly these sequences, without prompt chunks, unless
        one finishes."""
        full = self._active >= self.max_batch
        running = len(self._running) == len(sequences) and self.decoding == sequences
        return running and (full or self._first_waiting() is None)

    def schedule(self, costs: StepCosts) -> tuple[list[Chunk], list[Sequence]]:
        """The prompt chunks and the decoding sequences of the next step."""
        self.collect_finished()
        self.admit()
        decoding, chunks = self.decoding, []
        if self.prefilling:
            rows = max(self._model.chunk - len(decoding), MIN_CHUNK)  # a step has `chunk` in all
            budget = prefill_budget(costs, decoding, rows)
            chunks = self.prefill_chunks(budget)
        return chunks, decoding

    def collect_finished(self) -> None:
        """Free the rows of finished sequences."""
        for sequence in [each for each in self._running if each.finished]:
            self._running.remove(sequence)
            self._release(sequence)
        self._first_waiting()

    def admit(self) -> None:
        """Allocate rows for queued sequences while the batch and the cache have space."""
        while self._active < self.max_batch and (sequence := self._first_waiting()):
            if self._should_wait(sequence):
                return
            try:
                self._open(sequence)
            except OutOfRowsError as error:
                if self._active:
                    return  # a running sequence will free rows
                sequence.error = error
            with self._lock:
                self._waiting.popleft()
            if sequence.extent:
                self._running.append(sequence)

    def prefill_chunks(self, max_tokens: int) -> list[Chunk]:
        """The prompt tokens to prefill next, `max_tokens` in all, oldest request first."""
        chunks = []
        for sequence in self.prefilling:
            if max_tokens <= 0:
                break
            chunks.append((sequence, sequence.next_chunk(max_tokens)))
            max_tokens -= len(chunks[-1][1])
        return chunks

    def insert_prepared_rows(self, chunks: list[Chunk]) -> list[Chunk]:
        """Insert prepared rows that precede the chunks; drops the chunks of failed sequences."""
        for sequence, _ in chunks:
            with sequence.guard():
                sequence.insert_rows(self._model)
        return [(sequence, chunk) for sequence, chunk in chunks if not sequence.finished]

    @property
    def _active(self) -> int:
        """The number of sequences in the next step."""
        return sum(not each.paused for each in self._running)

    def _first_waiting(self) -> Sequence | None:
        """The next queued sequence; cancelled ones before it are dropped."""
        with self._lock:
            while self._waiting and self._waiting[0].finished:
                self._waiting.popleft()
            return self._waiting[0] if self._waiting else None

    def _should_wait(self, sequence: Sequence) -> bool:
        """Whether a running prefill will provide a prefix of this sequence's prompt."""
        leader = sequence.leader
        if leader and not leader.finished and leader.prompt_logits is None:
            return True
        prompt, salt = sequence.context.prompt, sequence.context.salt
        return self._model.prefixes.is_coming(prompt, most=sequence.shareable, salt=salt)

    def _open(self, sequence: Sequence) -> None:
        """Allocate rows for the prompt and part of the answer; n answers share their prompt's."""
        model, prompt, leader = self._model, sequence.context.prompt, sequence.leader
        bounded = model.arena.max_rows is not None  # then all at once: it cannot run out later
        tokens_left = sequence.tokens_left
        rows = (tokens_left if bounded else min(tokens_left, ROWS_AHEAD)) + self._spare
        if leader and leader.extent and leader.prompt_logits is not None:
            sequence.extent = model.fork(leader.extent, len(prompt), rows)
            exact = sequence.rows.shareable if sequence.rows and sequence.rows.approximate else None
            sequence.stats.cached_tokens = len(prompt[:exact])
            sequence.stats.approximate_tokens = leader.stats.approximate_tokens
            sequence.tokens_left = min(tokens_left, model.context_length - sequence.extent.position)
            try:
                with sequence.guard():
                    sequence.append_first(leader.prompt_logits)
                    sequence.start_drafter()
            finally:
                sequence.emit()
        else:
            most, salt = sequence.shareable, sequence.context.salt
            sequence.extent = model.prefixes.open(prompt, rows, most=most, salt=salt)
            sequence.stats.cached_tokens = sequence.extent.total
            model.prefixes.enter(prompt, sequence.extent, most=most, salt=salt)

    def _release(self, sequence: Sequence) -> None:
        context, extent = sequence.context, sequence.held_extent
        sequence.drafter.finish(context.sequence)
        if self.learn:
            self.learn(context, sequence.answer)
        sequence.extent = None
        tokens = [*context.prompt, *context.tokens]
        most, salt = sequence.shareable, context.salt
        self._model.prefixes.leave(tokens, extent, most=most, salt=salt)


def prefill_budget(costs: StepCosts, decoding: list[Sequence], max_tokens: int) -> int:
    """How many prompt tokens, at most `max_tokens`, the next step may prefill.

    Streamed tokens take at most `MAX_SLOWDOWN` times as long as without the prefill. The limit is
    per token: the more tokens a step yields, the less time it may take.
    """
    streaming = [sequence.stats for sequence in decoding if sequence.max_unread is not None]
    if not streaming:
        return max_tokens
    seconds = costs.beyond(_mean_length(decoding), len(decoding), max_tokens, len(decoding))
    usual = sum(max(stats.tokens_per_step, 1.0) for stats in streaming) / len(streaming)
    longest = max(MAX_SLOWDOWN / usual, 1.0) * seconds[0]
    return max(MIN_CHUNK, int((seconds <= longest).sum()) - 1)


def seconds_by_nodes(
    costs: StepCosts, decoding: list[Sequence], *, rows: int, prefill: int, nodes: int
) -> np.ndarray:
    """[nodes + 1] seconds of a step with `rows` rows and 0, 1, ... `nodes` more.

    `prefill` of the rows are prompt tokens. The step prefills them with or without drafts, so their
    time is not part of the result.
    """
    length = _mean_length(decoding)
    seconds = costs.beyond(length, rows, nodes, max(len(decoding), 1))
    if not prefill:
        return seconds
    alone = costs.step(length, prefill)
    return np.maximum(seconds - alone, MIN_SHARE * seconds)


def _mean_length(decoding: list[Sequence]) -> int:
    mean = sum(sequence.held_extent.total for sequence in decoding) // max(len(decoding), 1)
    return mean // LENGTH_STEP * LENGTH_STEP
