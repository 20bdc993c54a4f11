"""Adaptive retrieval as tables: quality and rounds, then time; one line per policy and variant.

A variant is compared with the first one on the questions of both, and with cached demonstrations:
any prefix cache saves as much, so only the rest is a method's own gain. Two averages of a speed-up
are given, as papers use either: the ratio of mean times, and the mean of the ratios by question.
Decoding is compared per token, so that a shorter answer is no faster. The change of F1 is paired by
question, with its bootstrap interval.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.quality.power import difference
from benchmarks.report import Figure, Table
from graft.bench.result_file import Results, Row
from graft.bench.table import MISSING, number

DEMOS = "demos:plain"  # the demonstrations are prefilled once, the rest in every call
TIMES = ("retrieval", "prefill", "decode", "judging", "total")
QUALITY = (
    "set", "policy", "variant", "n", "EM", "F1", "acc", "F1 change", "rounds", "overlap", "same",
)  # fmt: skip
TIME = (
    "set", "policy", "variant", *TIMES, "tok/step", "tokens", "reused", "~reused", "hits",
    "cache MB", "prefill x", "decode x", "total x",
)  # fmt: skip
GAINS = ("set", "policy", "variant", "prefill x", "decode x", "total x")
NOTE = (
    "Seconds per question, demonstrations apart. x: speed-up over {baseline}, ratio of means / "
    "mean of ratios; decoding per token, the rest per answer. rounds: retrievals per question; "
    "overlap: share of their passages that an earlier round had. reused: share of prompt tokens "
    "whose KV cache is exact; ~reused: approximate; hits: share of passages that the document "
    "cache had. same: outputs equal to those of {baseline}, where the prompts are the same"
)
ByQuestion = dict[int, Row]


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one set, policy and variant, and those of the baseline."""

    set: str
    policy: str
    variant: str
    mine: ByQuestion
    base: ByQuestion

    @property
    def rows(self) -> list[Row]:
        """One per question."""
        return list(self.mine.values())

    @property
    def pairs(self) -> list[tuple[Row, Row]]:
        """(baseline, variant) of the questions of both."""
        return [(self.base[n], row) for n, row in self.mine.items() if n in self.base]

    @property
    def same(self) -> tuple[int, int]:
        """Equal outputs of those with the same prompts."""
        comparable = [pair for pair in self.pairs if _same_prompts(*pair)]
        return sum(one["output"] == two["output"] for one, two in comparable), len(comparable)


def baseline_of(results: Results) -> str:
    """The first variant."""
    names = results.headers[0].settings.get("variants") or [results.measured[0]["variant"]]
    return str(names[0])


def groups(results: Results, baseline: str | None = None) -> list[Group]:
    """By set, policy and variant; of repeats the median of each time."""
    repeats: dict[tuple[str, str, str, int], list[Row]] = defaultdict(list)
    for row in results.measured:
        repeats[row["set"], row["policy"], row["variant"], row["question"]].append(row)
    found: dict[tuple[str, str, str], ByQuestion] = defaultdict(dict)
    for (name, policy, variant, question), rows in repeats.items():
        times = {key for key in rows[0] if key.endswith("_seconds")}
        middle = {key: median(row[key] for row in rows) for key in times}
        found[name, policy, variant][question] = rows[0] | middle
    baseline = baseline or baseline_of(results)
    return [Group(*key, mine, found.get((*key[:2], baseline), {})) for key, mine in found.items()]


def _same_prompts(one: Row, two: Row) -> bool:
    reordered = one.get("reordered") or two.get("reordered")
    return one.get("guided", False) == two.get("guided", False) and not reordered


def tables(results: Results) -> list[Table]:
    """Quality, time, and gains over cached demonstrations where they were measured too."""
    found = groups(results)
    made = [
        Table("quality", QUALITY, [_quality(each) for each in found], left=3),
        Table("time", TIME, [_time(each) for each in found], left=3),
    ]
    baseline = baseline_of(results)
    own = [each for each in groups(results, DEMOS) if each.variant not in (DEMOS, baseline)]
    gains = [[each.set, each.policy, each.variant, *_speedups(each)] for each in own if each.base]
    if gains and baseline != DEMOS:
        made.append(Table(f"speed-up over {DEMOS}", GAINS, gains, left=3))
    return made


def _quality(group: Group) -> list[str]:
    rows, change = group.rows, MISSING
    if group.pairs:
        found = difference(*zip(*((one["f1"], two["f1"]) for one, two in group.pairs), strict=True))
        bounds = (
            f" ({100 * found.low:+.1f}, {100 * found.high:+.1f})" if found.low is not None else ""
        )
        change = f"{100 * found.mean:+.1f}{bounds}"
    same, compared = group.same
    return [
        *(group.set, group.policy, group.variant, str(len(rows))),
        *(_percent(_mean(rows, name)) for name in ("exact", "f1", "accuracy")),
        *(change, number(_mean(rows, "retrievals"), 2), _percent(_mean(rows, "overlap"))),
        f"{same}/{compared}" if compared else MISSING,
    ]


def _time(group: Group) -> list[str]:
    rows = group.rows
    steps = sum(row.get("steps", 0) for row in rows)
    decoded = sum(row["tokens"] - row["calls"] for row in rows)
    cached = any(row.get("passages") for row in rows)
    megabytes = max(row.get("cache_bytes", 0) for row in rows) / 1e6
    return [
        *(group.set, group.policy, group.variant),
        *(number(_mean(rows, f"{name}_seconds"), 2) for name in TIMES),
        number(decoded / steps if steps else None, 2),
        number(_mean(rows, "tokens"), 1),
        _percent(_share(rows, "reused_tokens", "prompt_tokens")),
        _percent(_share(rows, "approximate_tokens", "prompt_tokens")),
        _percent(_share(rows, "passage_hits", "passages")) if cached else MISSING,
        number(megabytes, 0) if cached else MISSING,
        *_speedups(group),
    ]


def seconds_of(row: Row, part: str) -> float:
    """Seconds of the prefill or of the whole answer; of decoding per token after the first of each
    call. 0 if unknown."""
    seconds: float = row.get(f"{part}_seconds", 0)
    if part != "decode":
        return seconds
    decoded = row["tokens"] - row["calls"]
    return seconds / decoded if decoded > 0 else 0.0


def _mean(rows: Sequence[Row], name: str) -> float | None:
    known = [row[name] for row in rows if row.get(name) is not None]
    return fmean(known) if known else None


def _share(rows: Sequence[Row], part: str, whole: str) -> float:
    total = sum(row.get(whole, 0) for row in rows)
    return sum(row.get(part, 0) for row in rows) / total if total else 0.0


def _speedups(group: Group) -> list[str]:
    return [_speedup(group.pairs, part) for part in ("prefill", "decode", "total")]


def _speedup(pairs: Sequence[tuple[Row, Row]], part: str) -> str:
    times = [(seconds_of(one, part), seconds_of(two, part)) for one, two in pairs]
    known = [(one, two) for one, two in times if one > 0 and two > 0]
    if not known:
        return MISSING
    of_means = sum(one for one, _ in known) / sum(two for _, two in known)
    return f"{of_means:.2f} / {fmean(one / two for one, two in known):.2f}"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f}"


def figures(results: Results) -> list[Figure]:
    """None."""
    return []


def notes(results: Results) -> list[str]:
    """How to read the tables."""
    settings = results.header.settings
    sizes = {k.removeprefix("passages of "): v for k, v in settings.items() if "passages of" in k}
    corpora = ", ".join(f"{name} {count:,}" for name, count in sizes.items())
    found = [NOTE.format(baseline=baseline_of(results))]
    found += [f"passages (gold and distractors of the sets): {corpora}"] if corpora else []
    for group in groups(results):
        same, compared = group.same
        if any(row.get("approximate") for row in group.rows):
            found.append(f"{group.policy} {group.variant} is approximate: outputs may differ")
        elif same != compared and settings.get("dtype") == "fp32":
            found.append(
                f"{group.set}: {group.policy} {group.variant} differs from the baseline in "
                f"{compared - same} of {compared} outputs; in fp32 this is a bug"
            )
    if failed := sum(bool(row.get("error")) for row in results.rows):
        found.append(f"{failed} measurements failed")
    return list(dict.fromkeys(found))
