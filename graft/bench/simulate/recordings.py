"""What is replayed: the answers that stand in result files of `graft bench`, with their prompts."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from graft.bench.records import Answer, Results
from graft.bench.report import PLAIN
from graft.errors import InputError


@dataclass(frozen=True, slots=True)
class Cell:
    """Recordings that are measured together."""

    suite: str
    temperature: float
    context: int  # tokens that prompts were cut to; 0: they were not

    def __str__(self) -> str:
        cut = f", context {self.context}" if self.context else ""
        return f"{self.suite}, temperature {self.temperature:g}{cut}"


@dataclass(frozen=True, slots=True)
class Recording:
    """A prompt and its answer as plain decoding writes it. `room` is how many tokens the answer
    might have had; one that has `ended` did so by its last token."""

    number: int
    category: str
    prompt: list[int]
    output: list[int]
    room: int
    ended: bool = False

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """What ended it."""
        return (self.output[-1],) if self.ended else ()


def recordings_of(results: Results, path: Path) -> dict[Cell, list[Recording]]:
    """One recording for every prompt of a file that has a lossless answer, plain ones first."""
    if not results.prompts:
        raise InputError(f"{path} has no prompts; measure again with this version of graft bench")
    room = results.sessions[0]["fixed"]["max_tokens"]
    answers = [each for each in results.answers.values() if _is_lossless(each)]
    answers.sort(key=lambda each: each.system != PLAIN)
    known: dict[tuple[Cell, int], Recording] = {}
    for answer in answers:
        for key, recording in _recorded(answer, results, room):
            known.setdefault(key, recording)
    if not known:
        raise InputError(f"{path} has no answers of plain decoding; add plain to --draft")
    return _in_order(known, results)


def _is_lossless(answer: Answer) -> bool:
    return answer.error is None and answer.keeps == "text"


def _recorded(
    answer: Answer, results: Results, room: int
) -> Iterable[tuple[tuple[Cell, int], Recording]]:
    cell = Cell(answer.suite, answer.temperature, answer.context)
    outputs = results.token_ids[answer.output]
    told = zip(answer.question_ids, outputs, answer.finish_reasons, strict=True)
    for number, output, reason in told:
        asked = results.prompts.get((number, answer.context))
        if asked is not None and len(output) > 1:
            ended = reason == "stop"
            recording = Recording(
                number,
                asked.category,
                asked.token_ids,
                output,
                room if ended else len(output),
                ended,
            )
            yield (cell, number), recording


def _in_order(
    known: dict[tuple[Cell, int], Recording], results: Results
) -> dict[Cell, list[Recording]]:
    """By cell, prompts as they were asked."""
    places = {key: place for place, key in enumerate(results.prompts)}
    ordered: dict[Cell, list[tuple[int, Recording]]] = {}
    for (cell, number), recording in known.items():
        place = places[number, cell.context]
        ordered.setdefault(cell, []).append((place, recording))
    return {
        cell: [each for _, each in sorted(pairs, key=lambda pair: pair[0])]
        for cell, pairs in ordered.items()
    }


def groups(count: int, batch: int) -> list[range]:
    """The places of as many recordings at a time as the batch has; those that do not fill a last
    group are left out."""
    return [range(start, start + batch) for start in range(0, count - count % batch, batch)]
