"""Result files of any kind as sections of a page: Markdown, and panels to draw."""

import json
from dataclasses import dataclass, field
from math import nan
from pathlib import Path

from graft.bench.index.run import INDEX
from graft.bench.kernels.records import Figures, read_figures
from graft.bench.kernels.report import of_part
from graft.bench.panels import Panel, draw_lines, panels, spoken
from graft.bench.rag.records import is_rag, read_rag_results
from graft.bench.records import read_results
from graft.bench.report import report
from graft.bench.serve.settings import SERVE
from graft.bench.sizes import short
from graft.errors import InputError

KERNELS = "kernels"
PARTS = {"attention": "attention of one layer", "step": "a whole step"}


@dataclass(frozen=True, slots=True)
class Section:
    """What one file says."""

    title: str
    markdown: str
    panels: list[Panel] = field(default_factory=list)


def section(path: Path, baseline: str | None, *, run_code: bool = False) -> Section:
    """By what the file's first line says it is."""
    kind = kind_of(path)
    if kind == KERNELS:
        return _kernels(path)
    if kind == INDEX:
        return _index(path)
    if kind == SERVE:
        return _serve(path)
    if is_rag(path):
        return _rag(path, baseline)
    from graft.bench.tables import as_markdown

    told = report(read_results(path), baseline, run_code=run_code)
    fixed = told.session["fixed"]
    title = f"{fixed['suite']}: {fixed['model']}, {fixed['dtype']}"
    return Section(title, as_markdown(told), panels(told))


def kind_of(path: Path) -> str:
    """The `record` of its first line; "header" for answers, "" where nobody can say."""
    try:
        with path.open(encoding="utf-8") as lines:
            return str(json.loads(lines.readline()).get("record", ""))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read; give a file written by graft bench") from error
    except (ValueError, AttributeError):
        return ""


def _rag(path: Path, baseline: str | None) -> Section:
    from graft.bench.rag.report import report as rag_report
    from graft.bench.rag.tables import as_markdown

    results = read_rag_results(path)
    fixed = results.sessions[-1]["fixed"] if results.sessions else {}
    told = rag_report(results, baseline)
    return Section(f"rag: {fixed.get('model', '')}", as_markdown(told))


def _kernels(path: Path) -> Section:
    from graft.bench.kernels.report import as_markdown

    found = read_figures(path)
    shape = found.sessions[-1]["fixed"]["shape"]["name"]
    return Section(f"kernels: {shape}", as_markdown(found), _kernel_panels(found))


def _kernel_panels(found: Figures) -> list[Panel]:
    """The time of our own against nodes, a line per context, and the floor of each."""
    made = []
    for part, title in PARTS.items():
        points: dict[str, list[tuple[float, float]]] = {}
        for each in sorted(of_part(found, part), key=lambda each: (each.context, each.nodes)):
            if each.ours:
                name = f"context {short(each.context)}"
                points.setdefault(name, []).append((each.nodes, 1e3 * (each.seconds or nan)))
                points.setdefault(f"{name}, floor", []).append((each.nodes, 1e3 * each.floor))
        if points:
            said = f"Milliseconds of {title} by nodes of the tree. {spoken(points)}"
            made.append(
                Panel(
                    f"cost of {title} against nodes",
                    said,
                    lambda panel, points=points: draw_lines(panel, points, ("nodes", "ms")),
                )
            )
    return made


def _index(path: Path) -> Section:
    from graft.bench.index.records import read_index
    from graft.bench.index.report import as_markdown, index_panels

    found = read_index(path)
    return Section("index: building and asking", as_markdown(found), index_panels(found))


def _serve(path: Path) -> Section:
    from graft.bench.serve.records import read_serve
    from graft.bench.serve.report import as_markdown, serve_panels

    found = read_serve(path)
    title = f"serve: {found.sessions[-1]['fixed']['model']}"
    return Section(title, as_markdown(found), serve_panels(found))
