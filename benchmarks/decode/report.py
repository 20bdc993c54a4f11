"""Tables and figures of decode results: speed, drafting, contexts, quality."""

from collections import Counter, defaultdict
from itertools import groupby

from benchmarks.quality.report import Quality, qualities
from benchmarks.report import Figure, Points, Table
from graft.bench.decoding import PLAIN, decode_rows
from graft.bench.result_file import ENGINE, Results
from graft.bench.sizes import short
from graft.bench.statistics import Estimate
from graft.bench.summary import Summary, cell_name, overall, summarize
from graft.bench.summary import notes as summary_notes
from graft.bench.table import COLUMNS, MISSING, cells, number

POSITIONS = 16  # of a draft; deeper ones are rare
MORE = ("accepted from", "differ at")
DRAFTING = ("category", "variant", "tok/step", "nodes/step", "accepted", "by source")
QUALITY = ("category", "variant", "measure", "prompts", "score", "difference", "detectable")


def tables(results: Results) -> list[Table]:
    """Speed and drafting cell by cell, then tokens per step by context, quality, settings."""
    baseline, summaries = summarize(results)
    found = []
    for title, group in groupby(summaries, key=cell_name):
        rows = list(group)
        speed = [[*cells(each), *_more(each)] for each in rows]
        found.append(Table(title, (*COLUMNS, *MORE), speed, left=2))
        drafted = [
            _drafting(each)
            for each in rows
            if each.nodes_per_step is not None and each.variant != PLAIN
        ]
        if drafted:
            found.append(Table(f"{title}: drafting", DRAFTING, drafted, left=2))
    found += _by_context(summaries)
    lines, _ = qualities(results, baseline)
    if lines:
        found.append(Table("quality", QUALITY, [_quality(line) for line in lines], left=3))
    return [*found, *_engines(results)]


def _more(each: Summary) -> list[str]:
    accepted = {name: count for name, count in each.accepted_by_source.items() if count}
    sources = " ".join(f"{name} {count / each.tokens:.0%}" for name, count in accepted.items())
    return [sources or MISSING, number(each.differ_at, 0)]


def _drafting(each: Summary) -> list[str]:
    drafted, accepted = each.drafted_by_source, each.accepted_by_source
    sources = ", ".join(
        f"{name} {accepted.get(name, 0) / count:.0%} of {count}"
        for name, count in drafted.items()
        if count
    )
    nodes = sum(drafted.values())
    rate = f"{sum(accepted.values()) / nodes:.0%}" if nodes else MISSING
    steps = [number(each.tokens_per_step, 2), number(each.nodes_per_step, 2)]
    return [each.category, each.variant, *steps, rate, sources or MISSING]


def _by_context(summaries: list[Summary]) -> list[Table]:
    """Tokens per step of every variant at every context, where there are several."""
    contexts = sorted({each.context for each in summaries if each.context})
    if len(contexts) < 2:
        return []
    lines: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for each in summaries:
        lines[each.category, each.variant][each.context] = number(each.tokens_per_step, 2)
    rows = [[*names, *(by.get(c, MISSING) for c in contexts)] for names, by in lines.items()]
    columns = ("category", "variant", *map(short, contexts))
    return [Table("tokens per step by context", columns, rows, left=2)]


def _quality(line: Quality) -> list[str]:
    change = MISSING if line.difference is None else estimate(line.difference, sign="+")
    names = [line.category, line.variant, line.measure]
    count, least = str(line.value.count), number(line.detectable, 3)
    return [*names, count, estimate(line.value), change, least]


def estimate(found: Estimate, sign: str = "") -> str:
    """A mean and its interval."""
    bounds = "" if found.low is None else f" ({found.low:{sign}.3f}, {found.high:{sign}.3f})"
    return f"{found.mean:{sign}.3f}{bounds}"


def _engines(results: Results) -> list[Table]:
    """Versions and settings of the engines, where there are several."""
    lines = {line["process"]: line for line in results.records[ENGINE]}
    if len(lines) < 2:
        return []
    rows = [
        [name, _listed(line["versions"]), _listed(line["settings"])] for name, line in lines.items()
    ]
    return [Table("engines", ("engine", "versions", "settings"), rows, left=3)]


def _listed(values: dict[str, object]) -> str:
    known = {name: v for name, v in values.items() if isinstance(v, str | int | float) and v != ""}
    return ", ".join(f"{name} {value}" for name, value in known.items()) or MISSING


def notes(results: Results) -> list[str]:
    """Weak intervals, different outputs, errors, and how quality was scored."""
    baseline, summaries = summarize(results)
    return [*summary_notes(results, baseline, summaries), *qualities(results, baseline)[1]]


def figures(results: Results) -> list[Figure]:
    """Speed-up by category, throughput by batch, tokens per step by context, acceptance."""
    baseline, summaries = summarize(results)
    found = []
    for title, group in groupby(summaries, key=cell_name):
        lines: dict[str, Points] = defaultdict(list)
        for each in group:
            if each.decode and each.variant != baseline:
                lines[each.variant].append((each.category or "all", each.decode.mean))
        found.append(Figure(f"decoding speed-up, {title}", "category", f"x {baseline}", lines))
    whole = overall(summaries)
    batches: dict[str, Points] = defaultdict(list)
    contexts: dict[str, Points] = defaultdict(list)
    for each in whole:
        label = f"{each.variant}, T {each.temperature:g}" if each.temperature else each.variant
        if each.total_tokens_per_second:
            batches[label].append((each.batch, each.total_tokens_per_second))
        if each.context and each.tokens_per_step:
            contexts[label].append((each.context, each.tokens_per_step))
    if len({each.batch for each in whole}) > 1:
        found.append(Figure("throughput by batch size", "batch", "tokens/s", batches))
    if len({each.context for each in whole}) > 1:
        title = "tokens per step by context"
        found.append(Figure(title, "context", "tokens per step", contexts, log_x=True))
    found.append(
        Figure("acceptance by position", "position in the draft", "share of steps", _kept(results))
    )
    return [each for each in found if each.lines]


def _kept(results: Results) -> dict[str, Points]:
    """Share of steps that accepted the first, second, ... token of their draft, by variant."""
    accepted: dict[str, Counter[int]] = defaultdict(Counter)
    steps: Counter[str] = Counter()
    for row in decode_rows(results):
        if row.accepted_by_position and row.steps:
            steps[row.variant] += row.steps
            for position, count in row.accepted_by_position.items():
                accepted[row.variant][int(position)] += count
    return {
        variant: [(at, counts[at] / steps[variant]) for at in range(1, POSITIONS + 1) if counts[at]]
        for variant, counts in accepted.items()
    }
