"""What a result file over questions says: quality, rounds and seconds, a row per policy and way.

A way is compared with the baseline on the questions both answered. Two averages of a speed-up are
given, as papers use either: the ratio of mean times, and the mean of each question's ratio (mostly
larger). The change of F1 is paired by question, with Student's 95 % interval.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median, stdev
from typing import Any

from graft.bench.metrics import t_quantile
from graft.bench.rag.records import Asked, RagResults
from graft.errors import InputError

PARTS = ("prefill", "decode", "total")
ALL_SECONDS = ("retrieval", "prefill", "decode", "judging", "total", "demonstration")
Answers = dict[int, Asked]  # by question


@dataclass(frozen=True, slots=True)
class Speedup:
    """Of one part of the time; above 1 is faster than the baseline."""

    ratio_of_means: float
    mean_of_ratios: float


@dataclass(frozen=True, slots=True)
class Change:
    """A mean difference and its 95 % interval, where there is one."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One way with one policy on one set. `seconds` are means by part; `same` of `compared` answers
    have the baseline's tokens, None where the prompts differ."""

    set: str
    policy: str
    way: str
    questions: int
    exact: float
    f1: float
    accuracy: float | None
    retrievals: float
    calls: float
    overlap: float | None
    reused: float  # share of all prompt tokens, known exactly
    nearly: float  # the same, known nearly
    hit_rate: float | None  # of the passages in prompts; None: no document cache
    cache_bytes: int  # at most
    tokens_per_step: float | None
    seconds: dict[str, float]
    speedups: dict[str, Speedup | None]
    f1_change: Change | None
    same: int | None
    compared: int | None
    approximate: bool


@dataclass(frozen=True, slots=True)
class RagReport:
    """All rows of a file, against one way."""

    baseline: str
    session: dict[str, Any]
    rows: list[Row]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def report(results: RagResults, baseline: str | None = None) -> RagReport:
    """Everything the tables show; without a name the baseline is the first way."""
    groups = _groups(results)
    ways = list(dict.fromkeys(way for _, _, way in groups))
    if not ways:
        raise InputError("the file holds no answers yet; run graft bench first")
    order = [way for session in results.sessions for way in session["options"]["ways"]]
    ways.sort(key=order.index)
    baseline = baseline or ways[0]
    if baseline not in ways:
        raise InputError(f"no answers of {baseline!r}; the baseline can be {', '.join(ways)}")
    cells = sorted({(name, policy) for name, policy, _ in groups})
    rows = [
        _row(groups[name, policy, way], groups.get((name, policy, baseline), {}))
        for name, policy in cells
        for way in ways
        if (name, policy, way) in groups
    ]
    return RagReport(baseline, results.sessions[-1], rows, _notes(results, rows))


def _groups(results: RagResults) -> dict[tuple[str, str, str], Answers]:
    """Of several repeats the median of each time counts."""
    repeats: dict[tuple[str, str, str, int], list[Asked]] = defaultdict(list)
    for each in results.answers.values():
        if each.error is None:
            repeats[each.set, each.policy, each.way, each.question].append(each)
    groups: dict[tuple[str, str, str], Answers] = defaultdict(dict)
    for (name, policy, way, question), answers in repeats.items():
        groups[name, policy, way][question] = _median(answers)
    return groups


def _median(answers: Sequence[Asked]) -> Asked:
    fields = asdict(answers[0])
    times = {f"{part}_seconds" for part in ALL_SECONDS}
    middle = {name: median(getattr(each, name) for each in answers) for name in times}
    return Asked(**(fields | middle))


def _row(mine: Answers, base: Answers) -> Row:
    answers = list(mine.values())
    first = answers[0]
    pairs = [(base[number], mine[number]) for number in mine if number in base]
    comparable = [pair for pair in pairs if _same_prompts(*pair)]
    same = sum(one.output == other.output for one, other in comparable)
    steps = sum(each.steps for each in answers)
    return Row(
        set=first.set,
        policy=first.policy,
        way=first.way,
        questions=len(answers),
        exact=_mean(answers, "exact"),
        f1=_mean(answers, "f1"),
        accuracy=None if first.accuracy is None else _mean(answers, "accuracy"),
        retrievals=_mean(answers, "retrievals"),
        calls=_mean(answers, "calls"),
        overlap=_overlap(answers),
        reused=_share(answers, "reused_tokens", "prompt_tokens"),
        nearly=_share(answers, "approximate_tokens", "prompt_tokens"),
        hit_rate=_share(answers, "passage_hits", "passages")
        if any(each.passages for each in answers)
        else None,
        cache_bytes=max(each.cache_bytes for each in answers),
        tokens_per_step=sum(each.tokens - each.calls for each in answers) / steps
        if steps
        else None,
        seconds={part: _mean(answers, f"{part}_seconds") for part in ALL_SECONDS},
        speedups={part: _speedup(pairs, f"{part}_seconds") for part in PARTS},
        f1_change=_change([other.f1 - one.f1 for one, other in pairs]),
        same=same if comparable else None,
        compared=len(comparable) or None,
        approximate=first.approximate,
    )


def _same_prompts(one: Asked, other: Asked) -> bool:
    return one.guided == other.guided and not (one.reordered or other.reordered)


def _mean(answers: Sequence[Asked], name: str) -> float:
    return fmean(getattr(each, name) for each in answers)


def _share(answers: Sequence[Asked], part: str, whole: str) -> float:
    total = sum(getattr(each, whole) for each in answers)
    return sum(getattr(each, part) for each in answers) / total if total else 0.0


def _overlap(answers: Sequence[Asked]) -> float | None:
    known = [each.overlap for each in answers if each.overlap is not None]
    return fmean(known) if known else None


def _speedup(pairs: Sequence[tuple[Asked, Asked]], name: str) -> Speedup | None:
    times = [(getattr(one, name), getattr(other, name)) for one, other in pairs]
    known = [(one, other) for one, other in times if one > 0 and other > 0]
    if not known:
        return None
    of_means = sum(one for one, _ in known) / sum(other for _, other in known)
    return Speedup(of_means, fmean(one / other for one, other in known))


def _change(differences: Sequence[float]) -> Change | None:
    if not differences:
        return None
    mean, count = fmean(differences), len(differences)
    if count == 1 or (quantile := t_quantile(count - 1)) is None:
        return Change(mean, None, None)
    half = quantile * stdev(differences) / count**0.5
    return Change(mean, mean - half, mean + half)


def _notes(results: RagResults, rows: Sequence[Row]) -> list[str]:
    """What a reader of the table must know besides."""
    session = results.sessions[-1]
    corpora = ", ".join(f"{name} {count:,}" for name, count in session["corpora"].items())
    notes = [f"passages searched, gold and distractors of the sets themselves: {corpora}"]
    languages = {each.language for each in results.answers.values() if each.error is None}
    notes.append(f"sentences by {', '.join(sorted(languages))}")
    reordering = {each.way for each in results.answers.values() if each.reordered}
    notes += [f"{way} changes prompts: it reorders passages" for way in sorted(reordering)]
    for row in rows:
        if row.approximate:
            notes.append(f"{row.policy} {row.way} is approximate: its answers may differ")
        elif row.compared and row.same != row.compared and session["fixed"]["dtype"] == "fp32":
            notes.append(
                f"{row.set}: {row.policy} {row.way} differs from the baseline in "
                f"{row.compared - row.same} of {row.compared} answers; in fp32 this must not happen"
            )
    if failed := sum(each.error is not None for each in results.answers.values()):
        notes.append(f"{failed} measurements failed")
    return list(dict.fromkeys(notes))
