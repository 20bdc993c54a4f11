"""Tokens per step as the pool fills: the answers of a suite, one after the other, with and without.

The answers are the suite's gold ones, or a model's own. Both runs replay them through `auto` (the
real loop around a recorded model), so they differ by the pool alone, and their times are those of a
table of step costs. The requests are divided into parts of equal length; in the first the pool is
cold.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchmarks.report import Table
from benchmarks.settings import Settings, option
from benchmarks.suites import max_answer_tokens
from benchmarks.suites.task import Prompt, read_suite, select
from graft.assemble.drafters import Drafters
from graft.assemble.resources import DraftResources
from graft.bench.decoding import DecodeRow
from graft.bench.result_file import Results, new_header, open_results
from graft.bench.simulate.costs import REFERENCE_NAME, find_costs
from graft.bench.simulate.recorded_model import SimulatedClock
from graft.bench.simulate.recordings import Recording
from graft.bench.simulate.replay import Machine, replay
from graft.decode.text import Encoder
from graft.errors import InputError
from graft.match.pool import PoolIndex, PoolOptions, Pools
from graft.models.checkpoints.tokenizer import read_tokenizer

GOLD, MODEL = "gold", "model"


@dataclass(frozen=True, kw_only=True)
class WarmSettings(Settings):
    """Replay the answers of a suite with a pool that fills; prints a table."""

    at_least_one: ClassVar[tuple[str, ...]] = (*Settings.at_least_one, "parts")

    suite: str = option("spider", "a file of benchmarks/suites")
    answers: str = option(GOLD, "gold: the suite's; model: the model's own")
    costs: str = option(REFERENCE_NAME, "reference, a file or SHAPE@HARDWARE")
    parts: int = option(4, "of the requests")
    pool_tokens: int = option(1 << 22, "of the pool")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.answers not in (GOLD, MODEL):
            raise InputError(f"--answers is {GOLD} or {MODEL}, not {self.answers!r}")

    @property
    def output_tokens(self) -> int:
        """Max. tokens of an answer."""
        return self.max_tokens or max_answer_tokens(self.suite) or 128


@dataclass(slots=True)
class Part:
    """Requests one after the other, without and with the pool."""

    requests: int = 0
    without: list[DecodeRow] = field(default_factory=list)
    pooled: list[DecodeRow] = field(default_factory=list)

    def row(self) -> dict[str, float]:
        """Requests, tokens, tokens per step without and with the pool, the tokens copied from it,
        and seconds without and with it."""
        both = (self.without, self.pooled)
        seconds = [sum(row.decode_seconds for row in rows) for rows in both]
        per_step = [
            1 + sum(sum(row.accepted_by_source.values()) for row in rows)
            / max(1, sum(row.steps for row in rows))
            for rows in both
        ]  # fmt: skip
        return {
            "requests": self.requests,
            "tokens": sum(row.tokens for row in self.pooled),
            "auto_tokens_per_step": per_step[0],
            "pool_tokens_per_step": per_step[1],
            "from_pool": sum(row.accepted_by_source.get("pool", 0) for row in self.pooled),
            "auto_seconds": seconds[0],
            "pool_seconds": seconds[1],
        }


COLUMNS = ("part", "requests", "tokens", "auto", "with pool", "from pool", "time auto / pool")


def warm(settings: WarmSettings) -> list[dict[str, Any]]:
    """One row per part, and one for all."""
    chosen = select(
        read_suite(settings.suite, settings.data),
        limit=settings.limit,
        split=settings.split,
        categories=settings.categories,
    )
    chosen.sort(key=lambda prompt: prompt.number)  # conversations and sessions in their order
    made = _gold(settings, chosen) if settings.answers == GOLD else _generated(settings, chosen)
    recordings = [each for each in made if len(each.output) > 1]
    if not recordings:
        raise InputError(f"{settings.suite} has no gold answers; try --answers {MODEL}")
    whole, size = Part(), -(-len(recordings) // settings.parts)
    parts = [Part() for _ in range(-(-len(recordings) // size))]
    runs = [_replayed(settings, recordings, pools) for pools in (None, _pools(settings))]
    for i, (without, pooled) in enumerate(zip(*runs, strict=True)):
        for part in (whole, parts[i // size]):
            part.requests += 1
            part.without.append(without)
            part.pooled.append(pooled)
    named = [*((str(number), part) for number, part in enumerate(parts, 1)), ("all", whole)]
    about = {"suite": settings.suite, "answers": settings.answers, "costs": settings.costs}
    return [{**about, "part": name, **part.row()} for name, part in named]


def table(settings: WarmSettings, rows: list[dict[str, Any]]) -> Table:
    """The rows as a table."""
    title = f"{settings.suite}, {settings.answers} answers, costs {settings.costs}"
    cells = [
        [
            row["part"], str(row["requests"]), f"{row['tokens']:,}",
            f"{row['auto_tokens_per_step']:.2f}", f"{row['pool_tokens_per_step']:.2f}",
            f"{row['from_pool'] / max(1, row['tokens']):.0%}",
            f"{row['auto_seconds'] / row['pool_seconds']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    return Table(title, COLUMNS, cells)


def _pools(settings: WarmSettings) -> Pools:
    PoolIndex.warm_up()
    return Pools(PoolOptions(max_tokens=settings.pool_tokens))


def _replayed(
    settings: WarmSettings, recordings: list[Recording], pools: Pools | None
) -> list[DecodeRow]:
    priced, clock = find_costs(settings.costs, Results()), SimulatedClock()
    resources = DraftResources(clock=clock if priced.paced else None, pools=pools)
    drafter = Drafters(resources)["auto"]
    return replay(recordings, drafter, Machine(priced.costs), clock, pools)


def _gold(settings: WarmSettings, prompts: list[Prompt]) -> Iterator[Recording]:
    tokenizer = read_tokenizer(settings.model)
    encoder = Encoder(tokenizer, len(tokenizer))
    for prompt in prompts:
        if prompt.gold:
            answer = encoder.text(prompt.gold.references[0])[: settings.output_tokens]
            tokens = encoder.prompt(prompt.content).tokens
            yield Recording(prompt.number, prompt.category, tokens, answer, len(answer))


def _generated(settings: WarmSettings, prompts: list[Prompt]) -> Iterator[Recording]:
    """The model's greedy answers; turns of a conversation follow each other."""
    import graft

    engine = graft.load(settings.model, head=None, dtype=settings.dtype, device=settings.device)
    params = graft.SamplingParams(max_tokens=settings.output_tokens)
    for prompt in prompts:
        content = prompt.content
        for turn in (*prompt.turns, ""):
            tokens = engine.encoder.prompt(content).tokens
            if len(tokens) + settings.output_tokens > engine.context_length:
                break
            result = engine.generate(content, params)
            count = len(result.token_ids)
            yield Recording(prompt.number, prompt.category, tokens, result.token_ids, count)
            if isinstance(content, list):
                said = {"role": "assistant", "content": result.text}
                content = [*content, said, {"role": "user", "content": turn}]


def main(settings: WarmSettings) -> None:
    """Print the table; the rows go to a result file, to which further runs append."""
    rows = warm(settings)
    sys.stdout.write(f"{table(settings, rows).as_markdown()}\n")
    with open_results(settings.out) as file:
        file.begin(
            new_header("warm", {"parts": settings.parts, "pool_tokens": settings.pool_tokens})
        )
        for row in rows:
            file.row(row)
