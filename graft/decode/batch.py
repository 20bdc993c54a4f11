"""The requests on their way: who waits, whose prompt is being read, who is writing."""

import threading
from collections import deque
from collections.abc import Iterable

from graft.decode.sequence import Sequence
from graft.models.arena import ROWS_AHEAD, OutOfRowsError
from graft.models.language_model import LanguageModel


class Batch:
    """At most `most` sequences run at once, in the order they came.

    `add` may be called by any thread; everything else belongs to the one that makes the step.
    """

    def __init__(self, model: LanguageModel, *, most: int, spare_rows: int) -> None:
        self._model, self.most, self._spare = model, most, spare_rows
        self._waiting: deque[Sequence] = deque()
        self._door = threading.Lock()  # of those who wait
        self._running: list[Sequence] = []

    def add(self, sequences: Iterable[Sequence]) -> None:
        """These come last."""
        with self._door:
            self._waiting.extend(sequences)

    @property
    def running(self) -> int:
        """How many have rows."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many have none yet."""
        return len(self._waiting)

    @property
    def reading(self) -> list[Sequence]:
        """Those whose prompt is not in the cache yet."""
        return [each for each in self._running if not each.context.tokens]

    @property
    def writing(self) -> list[Sequence]:
        """Those that get a token in the next step."""
        return [each for each in self._running if each.context.tokens and not each.paused]

    def sweep(self) -> None:
        """Let go of those that ended."""
        for sequence in [each for each in self._running if each.over]:
            self._running.remove(sequence)
            self._release(sequence)
        self._first_waiting()

    def admit(self) -> None:
        """Give rows to those who wait, while there is room for them."""
        while self._active < self.most and (sequence := self._first_waiting()):
            if self._should_wait(sequence):
                return
            try:
                self._open(sequence)
            except OutOfRowsError as error:
                if self._active:
                    return  # some will end
                sequence.error = error
            with self._door:
                self._waiting.popleft()
            if sequence.extent:
                self._running.append(sequence)

    def pieces(self, most: int) -> list[tuple[Sequence, list[int]]]:
        """What to read next of which prompts, `most` tokens in all, the first come first."""
        taken = []
        for sequence in self.reading:
            if most <= 0:
                break
            taken.append((sequence, sequence.next_piece(most)))
            most -= len(taken[-1][1])
        return taken

    def fill(self, pieces: list[tuple[Sequence, list[int]]]) -> list[tuple[Sequence, list[int]]]:
        """Put in what is prepared of these prompts before the pieces; whoever fails there drops
        out."""
        for sequence, _ in pieces:
            with sequence.guard():
                sequence.put_rows(self._model)
        return [(sequence, piece) for sequence, piece in pieces if not sequence.over]

    @property
    def _active(self) -> int:
        """How many take part in the next step."""
        return sum(not each.paused for each in self._running)

    def _first_waiting(self) -> Sequence | None:
        """Who is next; those before it who gave up are let go."""
        with self._door:
            while self._waiting and self._waiting[0].over:
                self._waiting.popleft()
            return self._waiting[0] if self._waiting else None

    def _should_wait(self, sequence: Sequence) -> bool:
        """Whether a prompt that is being read now will spare this one a part of its own."""
        leader = sequence.leader
        if leader and not leader.over and leader.prompt_logits is None:
            return True
        prompt, salt = sequence.context.prompt, sequence.context.salt
        return self._model.prefixes.is_coming(prompt, most=sequence.shareable, salt=salt)

    def _open(self, sequence: Sequence) -> None:
        """Rows for the prompt and some of the answer; n answers to a prompt share its rows."""
        model, prompt, leader = self._model, sequence.context.prompt, sequence.leader
        bounded = model.arena.max_rows is not None  # then all at once: nobody runs dry later
        rows = (sequence.room if bounded else min(sequence.room, ROWS_AHEAD)) + self._spare
        if leader and leader.extent and leader.prompt_logits is not None:
            sequence.extent = model.fork(leader.extent, len(prompt), rows)
            exact = sequence.rows.shareable if sequence.stats.approximate else None
            sequence.stats.cached_tokens = len(prompt[:exact])
            sequence.stats.approximate_tokens = leader.stats.approximate_tokens
            sequence.room = min(sequence.room, model.context_length - sequence.extent.position)
            try:
                with sequence.guard():
                    sequence.begin(leader.prompt_logits)
                    sequence.start_drafter()
            finally:
                sequence.tell()
        else:
            most, salt = sequence.shareable, sequence.context.salt
            sequence.extent = model.prefixes.open(prompt, rows, most=most, salt=salt)
            sequence.stats.cached_tokens = sequence.extent.total
            model.prefixes.enter(prompt, sequence.extent, most=most, salt=salt)

    def _release(self, sequence: Sequence) -> None:
        context, extent = sequence.context, sequence.extent
        sequence.drafter.finish(context.sequence)
        sequence.extent = None
        tokens = [*context.prompt, *context.tokens]
        most, salt = sequence.shareable, context.salt
        self._model.prefixes.leave(tokens, extent, most=most, salt=salt)
