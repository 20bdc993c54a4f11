"""`graft bench`: presets and other engines on the same prompts, in turns; `bench report` again.

`bench kernels` is in bench_kernels.py.
"""

import json as json_module
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graft.bench.suites import suite_names
from graft.bench.systems import PEERS
from graft.cli.bench_rag import rag_file, rag_report, rag_settings
from graft.cli.failures import INTERRUPTED, REFUSED, fails_in_one_line, one_line
from graft.cli.options import takes_options
from graft.errors import InputError

if TYPE_CHECKING:
    from types import ModuleType

    from graft.bench.rag.report import RagReport
    from graft.bench.rag.settings import RagSettings
    from graft.bench.report import Report
    from graft.bench.settings import Settings
    from graft.bench.workers import Idle

RAG = "rag"  # questions over a corpus: graft/bench/rag

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

MARKDOWN = Annotated[bool, typer.Option("--markdown", help="Print tables for a document.")]
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
RUN_CODE = Annotated[
    bool,
    typer.Option("--run-code", help="Run the programs that a model wrote here, for pass@1."),
]
PEER_PYTHON = Annotated[
    list[str] | None,
    typer.Option(metavar="ENGINE=PATH", help="Python with hf, vllm or llama; repeat it."),
]
BASELINE = Annotated[
    str | None, typer.Option(metavar="NAME", help="Ratios are against it; plain if measured.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Comma-separated lists as they are typed; what is left out (None) is `Settings`' default."""

    suite: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Of {', '.join([*suite_names(), RAG])}.")
    ] = None
    data: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The suite's folder or file of questions.")
    ] = None
    draft: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Presets, such as plain,auto,sd@rejection,rag."),
    ] = None
    peers: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help=f"Of {','.join(PEERS)}."),
    ] = None
    model: Annotated[str | None, typer.Option(help="Known name, hub id, folder or GGUF file.")] = (
        None
    )
    draft_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="For sd, sd-tree, casd, rasd-pld, auto.")
    ] = None
    head: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="A draft head for head, eagle2, longspec, casd, auto; or none."
        ),
    ] = None
    dtype: Annotated[
        str | None, typer.Option(help="fp32, bf16, fp16, int8 or auto; the same for all.")
    ] = None
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ... or auto.")] = None
    context_length: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS", help="Of the models, such as 32k; more than their own by YaRN."
        ),
    ] = None
    temperature: Annotated[
        str | None, typer.Option(metavar="LIST", help="Such as 0,1; each is measured.")
    ] = None
    batch: Annotated[
        str | None, typer.Option(metavar="LIST", help="Prompts at a time, such as 1,4,16.")
    ] = None
    context: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Tokens that long prompts are cut to, such as 1k,2k,4k."),
    ] = None
    limit: Annotated[int | None, typer.Option(help="Prompts per category, evenly spread.")] = None
    groups: Annotated[
        int | None, typer.Option(help="Most batches in a cell, where --batch has several sizes.")
    ] = None
    split: Annotated[
        str | None, typer.Option(help="report (odd numbers, the default), tune (even) or all.")
    ] = None
    category: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these, such as rag,qa.")
    ] = None
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None
    repeats: Annotated[int | None, typer.Option(help="Times each answer is measured.")] = None
    rehearsals: Annotated[
        int | None,
        typer.Option(help="Times it is given before: prompts are known then, drafters' too."),
    ] = None
    ignore_eos: Annotated[
        bool | None, typer.Option("--ignore-eos", help="Every answer is --max-tokens long.")
    ] = None
    quality: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", help="Where there is gold: answers (the default), or likelihood too."
        ),
    ] = None
    load_options: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="""More of graft.load's, such as '{"kv_cache": 4e9}'."""),
    ] = None
    threads: Annotated[int | None, typer.Option(help="Of every system; all cores.")] = None
    python_hf: Annotated[
        str | None, typer.Option(metavar="PY", help="Python with transformers; this one.")
    ] = None
    python_vllm: Annotated[str | None, typer.Option(metavar="PY", help="Python with vLLM.")] = None
    python_llama: Annotated[
        str | None, typer.Option(metavar="PY", help="Python with llama-cpp-python.")
    ] = None
    gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model's weights for llama.")
    ] = None
    draft_gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A smaller model's, for llama-draft.")
    ] = None
    peer_options: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="""Such as '{"vllm-ngram": "--lookup-max 4"}'."""),
    ] = None

    def settings(self) -> "Settings":
        """Checked; InputError for what cannot be run."""
        from graft.bench.asked import Asked

        return Asked(**asdict(self)).settings()


@app.callback(invoke_without_command=True)
@fails_in_one_line
@takes_options
def bench(  # noqa: PLR0913 (one parameter is one option)
    called: typer.Context,
    *,
    options: BenchOptions,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines; the same command goes on with them."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PNG; beside --out if not given.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="NAMES", help="For the suite rag: fl,fs,flare,dragin.")
    ] = None,
    way: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="For the suite rag: REUSE:DRAFT or REUSE:DRAFT:guided, the first the baseline; "
            "REUSE may say more, such as cics+all, blend+0.3, exact+reorder.",
        ),
    ] = None,
    run_code: RUN_CODE = False,
    baseline: BASELINE = None,
    markdown: MARKDOWN = False,
    json: JSON = False,
) -> None:
    """Measure presets and other engines on the same prompts, in turns.

    Example: graft bench --data spec_bench --draft plain,auto --dtype fp32 --limit 10
    """
    if called.invoked_subcommand:
        return
    if options.suite == RAG:
        _bench_rag(rag_settings(options, policy, way), out, baseline, markdown=markdown, json=json)
        return
    if policy is not None or way is not None:
        raise InputError("--policy and --way belong to --suite rag")
    from graft.bench import tables
    from graft.bench.asked import check_baseline, default_file
    from graft.bench.runner import run

    settings = options.settings()
    check_baseline(settings, baseline)
    file = out or default_file(settings)
    complete = measure(partial(run, settings), file)
    told = load_report(file, baseline, run_code=run_code)
    show(told, tables, markdown=markdown, json=json)
    try:
        _draw(told, plot or file.with_suffix(".png"))
    except InputError as error:
        if plot is not None:
            raise
        say(f"no plot: {one_line(error)}")
    say(f"answers: {file}")
    if not complete:
        raise typer.Exit(REFUSED)


@app.command()
@fails_in_one_line
def report(  # noqa: PLR0913 (one parameter is one option)
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="From graft bench.")],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="All of it as one page, FILE.html with plots, or as FILE.md."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PNG, of one result file.")
    ] = None,
    run_code: RUN_CODE = False,
    baseline: BASELINE = None,
    markdown: MARKDOWN = False,
    json: JSON = False,
) -> None:
    """Show result files of every suite again: tables here, or a page with plots.

    Example: graft bench report results/*.jsonl --out page.html
    """
    if out is not None:
        _write_page(files, out, baseline, run_code=run_code)
        return
    if plot is not None and len(files) > 1:
        raise InputError("--plot takes one result file at a time")
    for file in files:
        _show_file(file, baseline, plot, run_code=run_code, markdown=markdown, json=json)


@app.command()
@fails_in_one_line
def again(  # noqa: PLR0913 (one parameter is one option)
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="From graft bench.")],
    *,
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The suite's, or one with all suites' folders.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For the new files; results/again.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Prompts of each category, at most.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another than in the file.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Another than in the file.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Another than in the file.")] = None,
    device: Annotated[str | None, typer.Option(help="Another than in the file.")] = None,
    peer_python: PEER_PYTHON = None,
    gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model's weights, for llama.")
    ] = None,
) -> None:
    """Measure result files again, by the settings in them, and compare cell by cell.

    Example: graft bench again results/auto_cpu_fp32_spec_bench.jsonl --data DATA
    """
    from graft.bench.again import FOLDER, Again, every_file
    from graft.bench.installed import interpreters

    changes = {"model": model, "draft_model": draft_model, "dtype": dtype, "device": device}
    changes |= {"interpreters": interpreters(peer_python or []), "gguf": gguf}

    def once_more(file: Path, idle: "Idle") -> bool:
        repeated = Again.of(file, data, out or FOLDER, limit=limit, **changes)
        complete = measure(partial(repeated.measure, idle=idle), repeated.out)
        print(repeated.table())
        return complete

    complete = every_file(files, once_more, say)
    if not complete:
        raise typer.Exit(REFUSED)


def _show_file(
    file: Path,
    baseline: str | None,
    plot: Path | None,
    *,
    run_code: bool,
    markdown: bool,
    json: bool,
) -> None:
    """One result file, whatever suite it is of."""
    from graft.bench import tables
    from graft.bench.page.sections import kind_of, section
    from graft.bench.rag import tables as rag_tables
    from graft.bench.rag.records import is_rag
    from graft.bench.task import COMMANDS

    if plot is not None and (is_rag(file) or kind_of(file) in COMMANDS):
        raise InputError(f"{file} has no --plot; graft bench report {file} --out page.html has")
    if is_rag(file):
        show(rag_report(file, baseline), rag_tables, markdown=markdown, json=json)
    elif kind_of(file) in COMMANDS:
        print(section(file, baseline).markdown)
    else:
        told = load_report(file, baseline, run_code=run_code)
        show(told, tables, markdown=markdown, json=json)
        if plot is not None:
            _draw(told, plot)


def _write_page(files: list[Path], out: Path, baseline: str | None, *, run_code: bool) -> None:
    """Every file is a section."""
    from graft.bench.page.html import write_markdown, write_page
    from graft.bench.page.sections import section

    if out.suffix not in (".html", ".md"):
        raise InputError(f"--out is a page, FILE.html or FILE.md, not {out}")
    sections = [section(file, baseline, run_code=run_code) for file in files]
    (write_page if out.suffix == ".html" else write_markdown)(sections, out)
    say(f"page: {out}")


def _bench_rag(
    settings: "RagSettings", out: Path | None, baseline: str | None, *, markdown: bool, json: bool
) -> None:
    """The suite rag has settings, records and tables of its own."""
    from graft.bench.rag import tables
    from graft.bench.rag.asked import check_baseline
    from graft.bench.rag.run import run

    check_baseline(settings, baseline)
    file = out or rag_file(settings)
    complete = measure(partial(run, settings), file)
    show(rag_report(file, baseline), tables, markdown=markdown, json=json)
    say(f"answers: {file}")
    if not complete:
        raise typer.Exit(REFUSED)


def measure(run: Callable[..., bool], file: Path) -> bool:
    """Run with a progress bar; Ctrl-C or SIGTERM ends the workers and says how to go on."""
    from graft.bench.interrupts import sigterm_interrupts

    try:
        with sigterm_interrupts(), Progress() as progress:
            return run(file, progress)
    except KeyboardInterrupt:
        raise stopped(file) from None


class Progress:
    """A bar on stderr with what is measured now; lines above it for what a reader must know."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            BarColumn(20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("reading the prompts", total=None)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, total: int, done: int) -> None:
        """Show how much of it stands in the file already."""
        self._bar.reset(self._task, total=total, completed=done)

    def turn(self, text: str) -> None:
        """What happens now."""
        self._bar.update(self._task, description=text)

    def advance(self) -> None:
        """One measurement more."""
        self._bar.advance(self._task)

    def say(self, line: str) -> None:
        """A line above the bar."""
        self._bar.console.print(line, soft_wrap=True, markup=False)


def load_report(file: Path, baseline: str | None, *, run_code: bool) -> "Report":
    """The figures of a result file."""
    from graft.bench.records import read_results
    from graft.bench.report import report as tables

    return tables(read_results(file), baseline, run_code=run_code)


def show(told: "Report | RagReport", tables: "ModuleType", *, markdown: bool, json: bool) -> None:
    """A report as `tables`, the module for its kind, lays it out; as Markdown; or as one JSON
    object."""
    if json:
        print(json_module.dumps(told.as_dict()))
        return
    if markdown:
        print(tables.as_markdown(told))
        return
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else tables.WIDTH)
    console.print(tables.heading(told), style="dim")
    for table in tables.as_tables(told):
        console.print(table)
    for note in told.notes:
        console.print(f"note: {note}", markup=False)
    console.print(tables.legend(told), style="dim")


def _draw(told: "Report", path: Path) -> None:
    from graft.bench.plot import plot

    plot(told, path)
    say(f"plot: {path}")


def stopped(out: Path | None) -> typer.Exit:
    """Says how to go on."""
    say(f"stopped; the same command goes on ({out})" if out else "stopped")
    return typer.Exit(INTERRUPTED)


def say(line: str) -> None:
    """To stderr: tables go to stdout."""
    print(line, file=sys.stderr)
