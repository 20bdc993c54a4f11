"""From answers to figures: paired ratios with intervals.

**Repeats.** Of several answers of one system to one prompt the median of each time counts.

**Equal lengths.** Systems may stop at different lengths (rounding changes a token, a draw another),
so decoding is compared by seconds per token, and end to end by the time a system would take, at
its own pace, for as many tokens as the baseline made.

**Ratios.** For every prompt both systems answered: baseline's time over the system's; above 1 the
system is faster. The figure is their geometric mean. Its 95 % interval is Student's t interval of
the mean of the logarithms, turned back: prompts are the sample, the two times of a pair were
taken one after the other. One prompt has no interval.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from graft.bench.records import Answer

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean of `pairs` ratios; no bounds where there is one pair only, or no scipy."""

    mean: float
    low: float | None
    high: float | None
    pairs: int


@dataclass(frozen=True, slots=True)
class Guesses:
    """Nodes of draft trees: how many the target was asked about, how many it agreed with."""

    drafted: int
    accepted: int
    share: float | None  # accepted of drafted


@dataclass(frozen=True, slots=True)
class Drafting:
    """What drafting asked of the target; `by_source` is empty where a file does not tell."""

    nodes_per_step: float
    all: Guesses
    by_source: dict[str, Guesses]


@dataclass(frozen=True, slots=True)
class Run:
    """One system on one group of prompts, its repeats taken together; times in seconds."""

    category: str
    session: int
    output: str
    prompts: int
    tokens: int
    first_tokens: int
    steps: int
    drafted: int | None  # nodes, if the engine tells
    drafted_by: Counter[str] | None  # the same by source
    accepted: Counter[str]
    positions: Counter[int] | None  # accepted by place in the draft, if the engine tells
    prefill: float | None
    decode: float | None
    total: float
    keeps: str = ""  # see System

    @property
    def pace(self) -> float | None:
        """Seconds per decoded token; None for answers that ended with the prefill."""
        decoded = self.tokens - self.first_tokens
        return self.decode / decoded if self.decode and decoded > 0 else None

    def time_for(self, tokens: int) -> float | None:
        """From the prompt to so many tokens, at this run's pace."""
        if tokens == self.tokens:
            return self.total
        if self.pace is None or self.prefill is None:
            return None
        return self.prefill + (tokens - self.first_tokens) * self.pace


def as_run(repeats: Sequence[Answer]) -> Run:
    """The median of each time; counts are the same in every repeat of a seeded answer."""
    first = repeats[0]
    return Run(
        category=first.category,
        session=first.session,
        output=first.output,
        prompts=len(first.question_ids),
        tokens=first.tokens,
        first_tokens=first.first_tokens,
        steps=first.steps or 0,
        drafted=first.drafted,
        drafted_by=None if first.drafted_by_source is None else Counter(first.drafted_by_source),
        accepted=Counter(first.accepted_by_source or {}),
        positions=_positions(first.accepted_by_position),
        prefill=_median(answer.prefill_seconds for answer in repeats),
        decode=_median(answer.decode_seconds for answer in repeats),
        total=median(answer.total_seconds or 0.0 for answer in repeats),
        keeps=first.keeps,
    )


def _positions(told: dict[str, int] | None) -> Counter[int] | None:
    """Keys of JSON are text."""
    return None if told is None else Counter({int(place): n for place, n in told.items()})


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def paired_ratio(base: Sequence[float], other: Sequence[float]) -> Ratio:
    """How much less time `other` takes, pair by pair; see the top of this file."""
    logs = [math.log(b / o) for b, o in zip(base, other, strict=True)]
    mean = fmean(logs)
    if len(logs) == 1 or (quantile := t_quantile(len(logs) - 1)) is None:
        return Ratio(math.exp(mean), None, None, len(logs))
    half = quantile * stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def t_quantile(degrees: int) -> float | None:
    """Student's, for the interval; None where scipy is missing."""
    try:
        from scipy.stats import t
    except ImportError:  # report.py tells the reader
        return None
    return float(t.ppf((1 + CONFIDENCE) / 2, degrees))


def decode_ratio(pairs: Sequence[tuple[Run, Run]]) -> Ratio | None:
    """By seconds per token; pairs of (baseline, system)."""
    return _ratio((base.pace, other.pace) for base, other in pairs)


def prefill_ratio(pairs: Sequence[tuple[Run, Run]]) -> Ratio | None:
    """By the time to the first token."""
    return _ratio((base.prefill, other.prefill) for base, other in pairs)


def total_ratio(pairs: Sequence[tuple[Run, Run]]) -> Ratio | None:
    """By the time for the baseline's number of tokens."""
    return _ratio((base.total, other.time_for(base.tokens)) for base, other in pairs)


def _ratio(times: Iterable[tuple[float | None, float | None]]) -> Ratio | None:
    known = [(base, other) for base, other in times if base and other]
    return paired_ratio(*zip(*known, strict=True)) if known else None


def decode_speed(runs: Iterable[Run]) -> float | None:
    """Decoded tokens per second over all runs."""
    timed = [run for run in runs if run.pace]
    seconds = sum(run.decode for run in timed)
    return sum(run.tokens - run.first_tokens for run in timed) / seconds if seconds else None


def total_speed(runs: Sequence[Run]) -> float | None:
    """Tokens per second, prompts included."""
    seconds = sum(run.total for run in runs)
    return sum(run.tokens for run in runs) / seconds if seconds else None


def mean_prefill(runs: Iterable[Run]) -> float | None:
    """Seconds until every prompt of a run has its first token."""
    known = [run.prefill for run in runs if run.prefill is not None]
    return fmean(known) if known else None


def tokens_per_step(runs: Sequence[Run]) -> float | None:
    """Tokens that a step after an answer's first adds to it (1 is plain decoding)."""
    steps = sum(run.steps for run in runs)
    return sum(run.tokens - run.prompts for run in runs) / steps if steps else None


def shares(runs: Sequence[Run]) -> dict[str, float]:
    """Share of all tokens by who guessed them, largest first; the rest is the model's own."""
    tokens = sum(run.tokens for run in runs)
    accepted = sum((run.accepted for run in runs), Counter())
    return {source: count / tokens for source, count in accepted.most_common() if count > 0}


def kept_by_position(runs: Sequence[Run]) -> list[float]:
    """Share of steps that kept the first token of their draft, the second, and so on."""
    told = [run for run in runs if run.positions is not None and run.steps]
    steps = sum(run.steps for run in told)
    kept = sum((run.positions for run in told), Counter())
    return [kept[place] / steps for place in range(1, max(kept, default=0) + 1)]


def step_seconds(runs: Iterable[Run]) -> float | None:
    """Of one step of one prompt; nobody can say what a prompt's share of a batch costs."""
    timed = [run for run in runs if run.decode and run.steps and run.prompts == 1]
    steps = sum(run.steps for run in timed)
    return sum(run.decode for run in timed) / steps if steps else None


def drafting(runs: Sequence[Run]) -> Drafting | None:
    """Over the runs whose engine counts its nodes, sources by how much they drafted."""
    counted = [run for run in runs if run.drafted is not None and run.steps]
    if not counted:
        return None
    told = [run for run in counted if run.drafted_by is not None]
    drafted = sum((run.drafted_by for run in told), Counter())
    accepted = sum((run.accepted for run in told), Counter())
    nodes = sum(run.drafted for run in counted)
    return Drafting(
        nodes_per_step=nodes / sum(run.steps for run in counted),
        all=_guesses(nodes, sum(run.accepted.total() for run in counted)),
        by_source={name: _guesses(n, accepted[name]) for name, n in drafted.most_common()},
    )


def _guesses(drafted: int, accepted: int) -> Guesses:
    return Guesses(drafted, accepted, accepted / drafted if drafted else None)


def first_difference(one: list[int], other: list[int]) -> int | None:
    """The token, counted from 1, at which two answers part; None if they are the same."""
    if one == other:
        return None
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter) + 1
