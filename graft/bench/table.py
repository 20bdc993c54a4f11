"""Tables of results, for a terminal, a document or a script; those of `graft bench`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from graft.bench.result_file import Results
from graft.bench.statistics import Estimate
from graft.bench.summary import Summary, cell_name, notes, summarize

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MISSING = "–"
COLUMNS = (
    "category", "variant", "prompts", "tok/s", "decode", "prefill", "total", "tok/step", "same",
)  # fmt: skip
LEGEND = (
    "decode, prefill, total: time of {baseline} over the variant's, paired by prompt, geometric "
    "mean with its 95 % interval; above 1 is faster. tok/s: decoding. same: outputs equal to those "
    "of {baseline}."
)


@dataclass(frozen=True, slots=True)
class Table:
    """Cells ready to show; the first `left` columns are text, and names may have several lines."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1

    def as_rich(self) -> "RichTable":
        """For a terminal."""
        from rich.table import Table as RichTable

        table = RichTable(title=self.title, title_justify="left", box=None, padding=(0, 1, 0, 0))
        for place, name in enumerate(self.columns):
            table.add_column(name, justify="left" if place < self.left else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def as_markdown(self) -> str:
        """For a document."""
        names = [name.replace("\n", ": ") for name in self.columns]
        rule = ["---" if place < self.left else "--:" for place in range(len(names))]
        lines = [f"| {' | '.join(line)} |" for line in (names, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines])


def cells(summary: Summary) -> list[str]:
    """One line of the table."""
    return [
        summary.category,
        summary.variant,
        str(summary.prompts),
        number(summary.tokens_per_second, 1),
        interval(summary.decode),
        number(summary.prefill.mean if summary.prefill else None, 2),
        number(summary.total.mean if summary.total else None, 2),
        number(summary.tokens_per_step, 2),
        MISSING if summary.compared is None else f"{summary.same}/{summary.compared}",
    ]


def number(value: float | None, digits: int) -> str:
    """A number, or a dash."""
    return MISSING if value is None else f"{value:,.{digits}f}"


def interval(estimate: Estimate | None) -> str:
    """A mean and its bounds."""
    if estimate is None:
        return MISSING
    bounds = f" ({estimate.low:.2f}–{estimate.high:.2f})" if estimate.low is not None else ""
    return f"{estimate.mean:.2f}{bounds}"


def heading(results: Results) -> str:
    """Model, machine, versions and date in one line."""
    header, settings = results.header, results.header.settings
    what = [str(settings[name]) for name in ("model", "dtype") if settings.get(name)]
    machine = header.hardware
    where = ", ".join(machine.get("gpus") or [str(machine.get("cpu", ""))])
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    commit = f" ({header.commit})" if header.commit else ""
    cores = f", {machine['cores']} cores" if "cores" in machine else ""
    parts = [", ".join(what), f"{where}{cores}", f"{versions}{commit}", header.date[:10]]
    return "; ".join(part for part in parts if part)


def tables(summaries: Sequence[Summary]) -> list[Table]:
    """One table per cell."""
    return [
        Table(title, COLUMNS, [cells(each) for each in group], left=2)
        for title, group in groupby(summaries, key=cell_name)
    ]


def as_dict(results: Results) -> dict[str, Any]:
    """What `--json` prints."""
    baseline, summaries = summarize(results)
    return {
        "header": asdict(results.header),
        "baseline": baseline,
        "rows": [asdict(each) for each in summaries],
        "notes": notes(results, baseline, summaries),
    }
