"""Figures of decode rows: paired ratios, tokens per step, acceptance, equal outputs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from graft.bench.result_file import Results
from graft.bench.statistics import Estimate, mean, ratio

Row = dict[str, Any]
NOTHING = "–"
PLAIN = "plain"
# What identifies a measurement apart from its variant; `session` keeps pairs within one run.
CELL = ("session", "suite", "prompts", "temperature", "batch", "context", "repeat")


def select(rows: Iterable[Row], **fields: object) -> list[Row]:
    """Rows with these values; a row without a field has 0 there."""
    return [row for row in rows if all(row.get(name, 0) == v for name, v in fields.items())]


def with_settings(results: Results) -> list[Row]:
    """Rows that also have the settings of their session under `settings`."""
    headers = results.headers
    return [{**row, "settings": headers[row["session"]].settings} for row in results.rows]


def pairs(
    rows: Sequence[Row], variant: str, base: str = PLAIN, cell: Sequence[str] = CELL
) -> Iterator[tuple[Row, Row]]:
    """(base, variant) for every measurement that both have."""
    found = {_cell(row, cell): row for row in rows if row["variant"] == base}
    for row in rows:
        if row["variant"] == variant and (key := _cell(row, cell)) in found:
            yield found[key], row


def _cell(row: Row, names: Sequence[str]) -> str:
    return repr([row.get(name, 0) for name in names])


def pace(row: Row) -> float | None:
    """Seconds per token after the first; None for an answer that ended with the prefill."""
    decoded = row["tokens"] - row["first_tokens"]
    return row["decode_seconds"] / decoded if decoded > 0 and row.get("decode_seconds") else None


def decode_speedup(rows: Sequence[Row], variant: str, base: str = PLAIN) -> Estimate | None:
    """How many times faster the variant decodes a token, paired by prompt."""
    return _speedup((pace(one), pace(two)) for one, two in pairs(rows, variant, base))


def mean_speedup(rows: Sequence[Row], variant: str, base: str = PLAIN) -> str:
    """The mean of `decode_speedup`, as shown."""
    return number(decode_speedup(rows, variant, base).mean)


def total_speedup(rows: Sequence[Row], variant: str, base: str = PLAIN) -> Estimate | None:
    """The same with prefill, for as many tokens as the base generated."""
    both = pairs(rows, variant, base)
    return _speedup((one["total_seconds"], _time_for(two, one["tokens"])) for one, two in both)


def _time_for(row: Row, tokens: int) -> float | None:
    """From the prompt to so many tokens, at this row's pace."""
    if tokens == row["tokens"]:
        return row["total_seconds"]
    one = pace(row)
    return None if one is None else row["prefill_seconds"] + (tokens - row["first_tokens"]) * one


def _speedup(times: Iterable[tuple[float | None, float | None]]) -> Estimate | None:
    known = [(one, two) for one, two in times if one and two]
    return ratio(*zip(*known, strict=True)) if known else None


def score_change(
    rows: Sequence[Row], variant: str, score: str, cell: Sequence[str] = CELL
) -> Estimate | None:
    """Mean difference of a score to plain decoding, paired by prompt."""
    both = [two[score] - one[score] for one, two in pairs(rows, variant, cell=cell)
            if score in one and score in two]  # fmt: skip
    return mean(both) if both else None


def tokens_per_step(rows: Sequence[Row]) -> float | None:
    """Tokens that one step adds to one answer, the target's own included; 1 is plain decoding."""
    steps = sum(row.get("steps") or 0 for row in rows)
    return sum(row["tokens"] - len(row["prompts"]) for row in rows) / steps if steps else None


def acceptance(rows: Sequence[Row]) -> float | None:
    """Accepted of drafted tokens."""
    drafted = sum(row.get("drafted") or 0 for row in rows)
    return sum(map(_accepted, rows)) / drafted if drafted else None


def _accepted(row: Row) -> int:
    found = row.get("accepted")
    return sum((row.get("accepted_by_source") or {}).values()) if found is None else found


def decode_speed(rows: Sequence[Row]) -> float:
    """Tokens per second after the first token."""
    decoded = sum(row["tokens"] - row["first_tokens"] for row in rows)
    return decoded / sum(row["decode_seconds"] for row in rows)


def same_outputs(rows: Sequence[Row], variant: str, base: str = PLAIN) -> tuple[int, int]:
    """How many answers equal the base's, and how many were compared."""
    both = [
        (one, two)
        for left, right in pairs(rows, variant, base)
        for one, two in zip(_outputs(left), _outputs(right), strict=True)
    ]
    return sum(one == two for one, two in both), len(both)


def _outputs(row: Row) -> list[str]:
    return row.get("outputs") or [row["output"]]


def number(value: float | None, digits: int = 2) -> str:
    """A figure as text; a dash where there is none."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share as text."""
    return NOTHING if value is None else f"{100 * value:.0f} %"


def plus_minus(found: Estimate, digits: int) -> str:
    """A change with half the width of its interval."""
    half = (found.high - found.low) / 2
    return f"{found.mean:+.{digits}f} ± {half:.{digits}f}" if half else f"{found.mean:.{digits}f}"


def interval(found: Estimate | None, digits: int = 2, sign: str = "") -> str:
    """A mean with its 95 % interval."""
    if found is None:
        return NOTHING
    shown = f"{found.mean:{sign}.{digits}f}"
    if found.low is None or found.low == found.high:
        return shown
    return f"{shown} ({found.low:{sign}.{digits}f} to {found.high:{sign}.{digits}f})"


def span(values: Iterable[float], show: Callable[[float], str] = number) -> str:
    """The smallest and the largest of several figures."""
    known = list(values)
    return f"{show(min(known))} to {show(max(known))}"


def tokens(count: int) -> str:
    """A context length or a number of tokens, as in 32K or 50M."""
    for size, unit in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return f"{count / 1e6:g}M" if count >= 1e6 else str(count)
