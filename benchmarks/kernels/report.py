"""Figures as tables, for a terminal or a document."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from graft.bench.kernels.records import Figure, Figures
from graft.bench.tables import NOTHING, bare_table

if TYPE_CHECKING:
    from rich.table import Table

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sheet:
    """Cells ready to show."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def heading(found: Figures) -> str:
    """Shape, machine, ceilings, versions, date: one paragraph."""
    session = found.sessions[-1]
    fixed, ceilings = session["fixed"], session["ceilings"]
    where = ", ".join(session["hardware"]["gpus"]) if fixed["device"] == "cuda" else fixed["cpu"]
    versions = ", ".join(f"{name} {number}" for name, number in session["versions"].items())
    commit = f" ({session['commit']})" if session.get("commit") else ""
    return (
        f"{_shape(fixed['shape'])}, {fixed['dtype']}; {where}: copies "
        f"{ceilings['bytes'] / 1e9:,.0f} GB/s, multiplies {ceilings['flops'] / 1e12:,.3g} TFLOP/s; "
        f"{versions}{commit}; {session['date'][:10]}"
    )


def _shape(shape: dict[str, Any]) -> str:
    heads = f"{shape['heads']} heads, {shape['kv_heads']} KV heads of {shape['head_size']}"
    if not shape["layers"]:
        return heads
    of = f" of {shape['of_layers']}" if shape["of_layers"] else ""
    return f"{shape['name']} ({heads}, {shape['layers']}{of} layers)"


LEGEND = (
    "Median milliseconds. Floor: one layer's keys and values (a step: the weights and all layers' "
    "keys and values) read once at the speed of a copy; of attention never less than its products "
    "at the speed of a large one. Error: largest difference from the definition in fp32 over its "
    "largest number. No mask: every node sees the whole tree, which is not what a tree needs. "
    "x plain: against a step of one node."
)


def sheets(found: Figures) -> list[Sheet]:
    """Attention, whole steps and memory, as far as they were measured."""
    parts = [_attention(found), _steps(found), _memory(found)]
    return [sheet for sheet in parts if sheet is not None]


def points(figures: Iterable[Figure]) -> dict[tuple[int, int], dict[str, Figure]]:
    """By context and nodes, ascending; each by what was measured."""
    found: dict[tuple[int, int], dict[str, Figure]] = {}
    for each in sorted(figures, key=lambda figure: (figure.context, figure.nodes)):
        found.setdefault((each.context, each.nodes), {})[each.what] = each
    return found


def of_part(found: Figures, part: str) -> list[Figure]:
    """The figures of attention, or of steps."""
    return [figure for figure in found.figures.values() if figure.part == part]


def our_figure(row: dict[str, Figure]) -> Figure | None:
    """What Graft uses at a point, if it was timed."""
    return next((each for each in row.values() if each.ours and each.seconds), None)


def _attention(found: Figures) -> Sheet | None:
    figures = of_part(found, "attention")
    if not figures:
        return None
    names = list(dict.fromkeys(figure.what for figure in figures))
    rows = []
    for (context, nodes), row in points(figures).items():
        ours = our_figure(row)
        times = [_ms(row[name].seconds if name in row else None) for name in names]
        ratio = f"{ours.seconds / ours.floor:.2f}" if ours else NOTHING
        error = NOTHING if not ours or ours.error is None else f"{ours.error:.1e}"
        floor = _ms(next(iter(row.values())).floor)
        rows.append([f"{context:,}", str(nodes), floor, *times, ratio, error])
    ours = next((figure.what for figure in figures if figure.ours), "ours")
    columns = ["context", "nodes", "floor", *names, f"{ours} / floor", "error"]
    return Sheet("attention of one layer, ms", columns, rows, _notes(figures))


def _notes(figures: list[Figure]) -> list[str]:
    """Why something has no time, each reason once."""
    where: dict[tuple[str, str], list[str]] = {}
    for each in figures:
        if each.seconds is None:
            where.setdefault((each.what, str(each.note)), []).append(f"{each.context}/{each.nodes}")
    return [
        f"{what}: {note} (context/nodes {', '.join(places[:3])}{', ...' if places[3:] else ''})"
        for (what, note), places in where.items()
    ]


def _steps(found: Figures) -> Sheet | None:
    figures = of_part(found, "step")
    if not figures:
        return None
    ours = next((figure.what for figure in figures if figure.ours), "ours")
    others = list(dict.fromkeys(figure.what for figure in figures if not figure.ours))
    shape = found.sessions[-1]["fixed"]["shape"]
    attention, table = points(of_part(found, "attention")), points(figures)
    on_gpu = any(figure.device_seconds for figure in figures)
    rows = []
    for point, row in table.items():
        step = our_figure(row)
        alone = our_figure(attention.get(point, {}))
        cells = [f"{point[0]:,}", str(point[1]), _ms(next(iter(row.values())).floor)]
        cells.append(_ms(step and step.seconds))
        if on_gpu:
            cells.append(_ms(step and step.device_seconds))
        cells += [_ms(row[name].seconds if name in row else None) for name in others]
        plain = our_figure(table.get((point[0], 1), {}))
        cells += _compared(step, plain, alone and alone.seconds * shape["layers"])
        rows.append(cells)
    columns = ["context", "nodes", "floor", ours, *(["on the device"] if on_gpu else []), *others]
    columns += [f"{ours} / floor", "x plain", "attention", "share", "the rest"]
    title = f"whole steps, random weights: {_shape(shape)}, ms"
    return Sheet(title, columns, rows, _notes(figures))


def _compared(step: Figure | None, plain: Figure | None, attention: float | None) -> list[str]:
    """Against the floor, against one token, and what attention alone took of it."""
    if step is None:
        return [NOTHING] * 5
    against = f"{step.seconds / plain.seconds:.2f}" if plain else NOTHING
    if attention is None:
        return [f"{step.seconds / step.floor:.2f}", against, *[NOTHING] * 3]
    share, rest = f"{attention / step.seconds:.0%}", _ms(step.seconds - attention)
    return [f"{step.seconds / step.floor:.2f}", against, _ms(attention), share, rest]


def _memory(found: Figures) -> Sheet | None:
    use = found.memory
    if use is None:
        return None
    columns = ["context", "nodes", "weights", "cache", "logits", "rest", "reserved by torch"]
    sizes = (use.weights, use.cache, use.logits, use.rest, use.reserved)
    cells = [NOTHING if size is None else f"{size / MIB:,.0f}" for size in sizes]
    note = "rest: activations, the kernel's scratch, what captured graphs keep"
    if use.rest is None:
        note = "rest: counted on a GPU alone; there activations, the kernel's scratch and graphs"
    row = [f"{use.context:,}", str(use.nodes), *cells]
    return Sheet("memory at the peak, random weights, MiB", columns, [row], [note])


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    value = seconds * 1000
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def as_table(sheet: Sheet) -> "Table":
    """For a terminal."""
    table = bare_table(sheet.title)
    for name in sheet.columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in sheet.rows:
        table.add_row(*row)
    return table


def as_markdown(found: Figures) -> str:
    """The same for a document."""
    parts = [f"{heading(found)}.", LEGEND]
    for sheet in sheets(found):
        lines = [f"**{sheet.title}**", "", _row(sheet.columns), _row(["--:"] * len(sheet.columns))]
        parts.append("\n".join(lines + [_row(row) for row in sheet.rows]))
        parts += [f"- {note}" for note in sheet.notes]
    return "\n\n".join(parts)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def as_dict(found: Figures) -> dict[str, Any]:
    """For scripts: the last session and every figure."""
    return {
        "session": found.sessions[-1],
        "figures": [asdict(figure) for figure in found.figures.values()],
        "memory": asdict(found.memory) if found.memory else None,
    }
