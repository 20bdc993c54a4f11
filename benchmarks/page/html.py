"""Reports as one HTML page without scripts or external files, light and dark."""

import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.page.figures import is_wide, svg
from benchmarks.report import Figure, Report
from graft.errors import CheckpointError, InputError
from graft.home import atomic_file

if TYPE_CHECKING:
    from markdown_it.token import Token

TITLE = "Graft: benchmark results"
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --faint: #5b6068;
  --line: #d9dce1; --head: #f2f4f7; --link: #0b57d0; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --ink: #e6e8eb;
  --faint: #a2a8b1; --line: #363b42; --head: #1f2328; --link: #8ab4f8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.3rem; margin-top: 3rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
p, li { max-width: 60rem; }
.tables p { color: var(--faint); font-size: .9rem; }
a { color: var(--link); }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .4rem; }
.scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; width: 100%; font-size: .88rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; text-align: left; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; } td:last-child { white-space: normal; min-width: 9rem; }
th { background: var(--head); font-weight: 600; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
.figures { display: grid; align-items: start; gap: 1.25rem; margin: 1.25rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); }
figure.wide { grid-column: 1 / -1; }
figure { margin: 0; padding: .75rem; border: 1px solid var(--line); border-radius: .4rem; }
figcaption { font-weight: 600; font-size: .92rem; margin-bottom: .5rem; }
figure svg { width: 100%; height: auto; display: block; }
figure svg text { fill: currentColor; }
details { font-size: .85rem; color: var(--faint); margin-top: .4rem; }
@media print { .scroll { overflow: visible; } figure, table { break-inside: avoid; } }
"""


def write_page(reports: list[Report], path: Path) -> None:
    """Write the page atomically."""
    _write(page(reports), path)


def _write(text: str, path: Path) -> None:
    try:
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except CheckpointError as error:
        raise InputError(f"{path} cannot be written; choose another --out") from error


def page(reports: list[Report]) -> str:
    """All reports, with a table of contents where there are several."""
    body = "\n".join(_section(place, each) for place, each in enumerate(reports, 1))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{TITLE}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{TITLE}</h1>\n{_contents(reports)}{body}\n</main>\n</body>\n</html>\n"
    )


def _contents(reports: list[Report]) -> str:
    if len(reports) < 2:
        return ""
    links = "".join(
        f'<li><a href="#part-{place}">{escape(each.title)}</a></li>'
        for place, each in enumerate(reports, 1)
    )
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n'


def _section(place: int, each: Report) -> str:
    name = f"part-{place}"
    figures = "\n".join(
        _figure(f"{name}-figure-{number}", figure, svg(figure, f"p{place}f{number}"))
        for number, figure in enumerate(each.figures, 1)
    )
    drawn = f'<div class="figures">\n{figures}\n</div>\n' if figures else ""
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(each.title)}</h2>\n'
        f'{drawn}<div class="tables">\n{_tables(each.as_markdown(), name)}</div>\n</section>'
    )


def _figure(name: str, figure: Figure, drawn: str) -> str:
    """With its values in words, for screen readers and others."""
    wide = ' class="wide"' if is_wide(figure) else ""
    words = f'<p id="{name}-words">{escape(figure.in_words())}</p>'
    return (
        f'<figure{wide} aria-labelledby="{name}" aria-describedby="{name}-words">\n'
        f'<figcaption id="{name}">{escape(figure.title)}</figcaption>\n'
        f'<div role="img" aria-labelledby="{name} {name}-words">{drawn}</div>\n'
        f"<details><summary>In words</summary>{words}</details>\n"
        "</figure>"
    )


def _tables(markdown: str, name: str) -> str:
    """Markdown as HTML: a bold line above a table becomes its heading."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    for place, token in enumerate(tokens):
        if token.type == "th_open":
            token.attrSet("scope", "col")
        elif token.type == "table_open":
            _name_table(tokens, place, f"{name}-table-{place}")
    shown = parser.renderer.render(tokens, parser.options, {})
    region = r'<div class="scroll" role="region" tabindex="0"\1><table>'
    return re.sub(r"<table( [^>]*)?>", region, shown).replace("</table>", "</table></div>")


def _name_table(tokens: list["Token"], place: int, name: str) -> None:
    opened, inline, closed = tokens[max(place - 3, 0) : place] or [None] * 3
    if opened is None or opened.type != "paragraph_open" or not inline.content.startswith("**"):
        return
    for token in (opened, closed):
        token.tag = "h3"
    opened.attrSet("id", name)
    inner = [each for each in inline.children if not each.type.startswith("strong_")]
    inline.children = inner
    tokens[place].attrSet("aria-labelledby", name)
