"""The measuring loop: prompt by prompt all variants in turn, so that a slow minute of the machine
affects all of them alike. Every row is written to the file at once."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from graft.bench.result_file import ENGINE, ResultFile, Row, now, output_hash
from graft.bench.variants import Variant
from graft.bench.worker import Backend, RequestError, WorkerError
from graft.errors import GraftError, InputError

WARM_UP_PROMPT, WARM_UP_TOKENS = 64, 12
Item = TypeVar("Item")


class Progress(Protocol):
    """Shows how a run proceeds."""

    def begin(self, total: int, done: int) -> None:
        """The number of measurements, and how many of them the file has already."""

    def show(self, text: str) -> None:
        """The current activity."""

    def advance(self) -> None:
        """A measurement is complete."""

    def say(self, line: str) -> None:
        """A message to keep."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as every variant gets it; the id is also the seed of its samples."""

    id: int
    token_ids: list[int]
    category: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant on one batch of prompts."""

    variant: Variant
    prompts: tuple[PromptTokens, ...]
    temperature: float = 0.0
    repeat: int = 0
    context: int = 0
    suite: str = ""

    @property
    def row(self) -> Row:
        """The fields that describe it in the file."""
        categories = {each.category for each in self.prompts}
        return {
            "suite": self.suite,
            "prompts": [each.id for each in self.prompts],
            "category": categories.pop() if len(categories) == 1 else "mixed",
            "variant": self.variant.name,
            "temperature": self.temperature,
            "batch": len(self.prompts),
            "context": self.context,
            "repeat": self.repeat,
            "prompt_tokens": sum(len(each.token_ids) for each in self.prompts),
            "exactness": self.variant.exactness,
        }

    def __str__(self) -> str:
        batch = f", batch {len(self.prompts)}" if len(self.prompts) > 1 else ""
        return f"{self.variant.name}: prompt {self.prompts[0].id}{batch}"


def interleave(
    variants: Sequence[Variant],
    batches: Sequence[tuple[PromptTokens, ...]],
    temperatures: Sequence[float],
    repeats: int,
) -> Iterator[tuple[Variant, tuple[PromptTokens, ...], float, int]]:
    """Batch by batch all variants; the first one changes with every batch and repeat."""
    for temperature in temperatures:
        for repeat in range(repeats):
            for place, batch in enumerate(batches):
                able = [each for each in variants if len(batch) == 1 or each.batches]
                shift = (place + repeat) % max(len(able), 1)
                for variant in able[shift:] + able[:shift]:
                    yield variant, batch, temperature, repeat


def batched(prompts: Sequence[Item], size: int) -> list[tuple[Item, ...]]:
    """Prompts in batches; those that do not fill a last batch are left out."""
    if len(prompts) < size:
        raise InputError(f"--batch {size} needs {size} prompts; {len(prompts)} are selected")
    whole = len(prompts) - len(prompts) % size
    return [tuple(prompts[start : start + size]) for start in range(0, whole, size)]


Complete = Callable[[Measurement, Row, dict[str, Any], Backend], Row]


@dataclass(slots=True)
class Loop:
    """Measures what a file does not have yet.

    `backend` returns the running engine of a variant, `complete` may add fields to a row, such as
    the text of an output.
    """

    file: ResultFile
    backend: Callable[[Variant], Backend]
    progress: Progress
    max_tokens: int
    end_tokens: Sequence[int]
    warm_ups: int = 0  # complete runs of every request before the one that is timed
    complete: Complete | None = None
    failed: set[str] = field(default_factory=set)  # processes that ended
    _written: set[str] = field(default_factory=set)  # outputs whose tokens are in the file
    _described: set[str] = field(default_factory=set)  # processes with an `engine` line

    def run(self, measurements: Sequence[Measurement]) -> bool:
        """Measure; False if a variant had to be given up."""
        left = [each for each in measurements if not self.file.results.has(each.row)]
        self.progress.begin(len(measurements), len(measurements) - len(left))
        self._written = {row["output"] for row in self.file.results.rows if "token_ids" in row}
        for each in left:
            if each.variant.process not in self.failed:
                self._measure(each)
            self.progress.advance()
        return not self.failed

    def request(self, measurement: Measurement) -> dict[str, Any]:
        """The request of engines/protocol.py."""
        return {
            "id": f"{measurement.prompts[0].id}-{measurement.repeat}",
            "prompts": [each.token_ids for each in measurement.prompts],
            "max_tokens": self.max_tokens,
            "end_tokens": list(self.end_tokens),
            "method": measurement.variant.method,
            "options": measurement.variant.options,
            "temperature": measurement.temperature,
            "seeds": [each.id for each in measurement.prompts],
        }

    def _measure(self, measurement: Measurement) -> None:
        """A failure becomes a message and a row with an error."""
        try:
            self.file.row(self._timed(measurement))
        except RequestError as error:
            self._failed(measurement, error)
        except WorkerError as error:
            self.failed.add(measurement.variant.process)
            self._failed(measurement, error)

    def _failed(self, measurement: Measurement, error: GraftError) -> None:
        self.progress.say(f"{measurement}: {error}")
        self.file.row({**measurement.row, "date": now(), "error": str(error)})

    def _timed(self, measurement: Measurement) -> Row:
        backend, request = self.started(measurement.variant), self.request(measurement)
        kind = measurement.variant.name, len(measurement.prompts), measurement.temperature > 0
        if kind not in backend.warm:
            self.progress.show(f"{measurement.variant.name}: warm-up")
            short = [tokens[-WARM_UP_PROMPT:] for tokens in request["prompts"]]
            tokens = min(WARM_UP_TOKENS, self.max_tokens)
            backend.ask(request | {"prompts": short, "max_tokens": tokens})
            backend.warm.add(kind)
        self.progress.show(str(measurement))
        for _ in range(self.warm_ups):
            backend.ask(request)
        load = round(os.getloadavg()[0], 2)
        answer = backend.ask(request)
        row = {**measurement.row, **answered(measurement, answer), "load": load, "date": now()}
        if row["output"] not in self._written:
            self._written.add(row["output"])
            row["token_ids"] = answer["token_ids"]
        return self.complete(measurement, row, answer, backend) if self.complete else row

    def started(self, variant: Variant) -> Backend:
        """The engine of a variant, described in the file when it is first used."""
        process = variant.process
        if process in self._described:
            return self.backend(variant)
        self.progress.show(f"starting {process}")
        backend = self.backend(variant)
        line = {"engine": variant.engine, "process": process, **backend.about}
        self.file.record(ENGINE, line)
        self._described.add(process)
        return backend


def answered(measurement: Measurement, answer: dict[str, Any]) -> Row:
    """The fields of a row that follow from an engine's answer."""
    tokens, prefill = sum(map(len, answer["token_ids"])), answer["prefill_seconds"]
    accepted = answer.get("accepted_by_source")
    if accepted is None and measurement.variant.drafts:
        accepted = {"drafted": tokens - len(measurement.prompts) - answer["steps"]}
    names = (
        "first_tokens", "prefill_seconds", "total_seconds", "steps", "drafted",
        "drafted_by_source", "accepted_by_position", "prefilled_tokens", "finish_reasons",
    )  # fmt: skip
    return {
        **{name: answer.get(name) for name in names},
        "tokens": tokens,
        "decode_seconds": None if prefill is None else answer["total_seconds"] - prefill,
        "accepted_by_source": accepted or {},
        "output": output_hash(answer["token_ids"]),
    }
