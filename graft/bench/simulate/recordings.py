"""What is replayed: the outputs of a result file of `graft bench --out`, with their prompts."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from graft.bench.decoding import PLAIN, SAME_TEXT, DecodeRow, decode_rows
from graft.bench.result_file import PROMPT, Results, unpack_tokens
from graft.bench.summary import token_ids
from graft.errors import InputError


@dataclass(frozen=True, slots=True)
class Cell:
    """Recordings that are measured together."""

    suite: str
    temperature: float
    context: int  # tokens that prompts are cut to; 0: prompts are whole

    def __str__(self) -> str:
        context = f"context {self.context}" if self.context else ""
        parts = [self.suite, f"temperature {self.temperature:g}", context]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Recording:
    """A prompt and its output as plain decoding generates it, of at most `max_tokens` tokens; an
    output that `ended` did so by its last token."""

    number: int
    category: str
    prompt: list[int]
    output: list[int]
    max_tokens: int
    ended: bool = False

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The token that ended it."""
        return (self.output[-1],) if self.ended else ()


Prompts = dict[tuple[int, int], list[int]]  # token ids by id and context


def recordings_of(results: Results, path: Path) -> dict[Cell, list[Recording]]:
    """One recording for every prompt with a lossless output, of plain decoding if there is one."""
    prompts: Prompts = {
        (line["prompt"], line["context"]): unpack_tokens(line["tokens"])
        for line in results.records[PROMPT]
    }
    if not prompts:
        raise InputError(f"{path} has no prompts; write one with graft bench --out")
    max_tokens = results.headers[0].settings["max_tokens"]
    outputs = token_ids(results)
    rows = [row for row in decode_rows(results) if row.exactness == SAME_TEXT]
    known: dict[tuple[Cell, int], Recording] = {}
    for row in sorted(rows, key=lambda row: row.variant != PLAIN):
        for key, recording in _recorded(row, prompts, outputs[row.output], max_tokens):
            known.setdefault(key, recording)
    if not known:
        raise InputError(f"{path} has no output of plain decoding; add plain to --draft")
    return {
        cell: [
            known[cell, number]
            for number, context in prompts  # in the order of the file
            if context == cell.context and (cell, number) in known
        ]
        for cell in dict.fromkeys(cell for cell, _ in known)
    }


def _recorded(
    row: DecodeRow, prompts: Prompts, outputs: list[list[int]], max_tokens: int
) -> Iterable[tuple[tuple[Cell, int], Recording]]:
    cell = Cell(row.suite, row.temperature, row.context)
    for number, output, reason in zip(row.prompts, outputs, row.finish_reasons, strict=True):
        prompt = prompts.get((number, row.context))
        if prompt is not None and len(output) > 1:
            ended = reason == "stop"
            limit = max_tokens if ended else len(output)
            yield (cell, number), Recording(number, row.category, prompt, output, limit, ended)
