"""`graft bench`: draft presets and other engines on the user's own prompts."""

import json as json_module
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graft.cli.options import JSON, ModelOptions, takes_options
from graft.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from graft.bench.result_file import Results

WIDTH = 110  # where there is no terminal


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ModelOptions):
    """The model options of `graft run`, with several presets instead of one."""

    draft: Annotated[
        str, typer.Option(metavar="NAMES", help="Draft presets, the baseline first.")
    ] = "plain,auto"


@takes_options
def bench(  # noqa: PLR0913 (one parameter is one option)
    prompts: Annotated[
        list[Path],
        typer.Argument(
            metavar="PROMPTS...",
            help='Files: JSON lines with "prompt" or "messages" and perhaps "documents", '
            "Spec-Bench's questions, or a text file per prompt.",
        ),
    ],
    *,
    options: BenchOptions,
    max_tokens: Annotated[int, typer.Option(help="Max. tokens of an output.")] = 128,
    temperature: Annotated[
        str, typer.Option(metavar="LIST", help="One or several, such as 0,1.")
    ] = "0",
    batch: Annotated[
        str, typer.Option(metavar="LIST", help="Prompts at once, one or several such as 1,4.")
    ] = "1",
    repeats: Annotated[int, typer.Option(help="Measurements of each prompt.")] = 1,
    limit: Annotated[int | None, typer.Option(help="Max. prompts, evenly spread.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=PYTHON]",
            help="Another engine, by the interpreter of its environment: transformers, vllm, "
            "vllm-ngram, llama.cpp, ...; repeatable.",
        ),
    ] = None,
    gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model's weights for llama.cpp.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write JSON lines; run again to resume."),
    ] = None,
    json: JSON = False,
) -> None:
    """Measure draft presets on your prompts: speed against plain decoding, and the same text.

    Presets take turns prompt by prompt. Decoding and prefill are timed apart.

    Example: graft bench prompts.jsonl --draft plain,auto
    """
    drafts = split(options.draft)
    chosen = _check(options, drafts)
    from graft.bench.prompts import read_prompts
    from graft.bench.run import BenchSettings, bench

    settings = BenchSettings(
        prompts=prompts,
        drafts=drafts,
        engines=dict(name.partition("=")[::2] for name in engine or ()),
        max_tokens=max_tokens,
        temperatures=split(temperature, float, "--temperature takes numbers"),
        batches=split(batch, int, "--batch takes whole numbers"),
        repeats=repeats,
        limit=limit,
        verifier=options.verifier,
        gguf=gguf,
        draft_model=options.draft_model,
        out=out,
    )
    read_prompts(settings.prompts)  # refused before a model is loaded
    loaded = chosen.load_engine(max_batch=max(settings.batches), prefix_cache=0)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        results = bench(settings, loaded, _Bar(progress))
    _show(results, json=json)


def _check(options: BenchOptions, drafts: tuple[str, ...]) -> ModelOptions:
    """The options of the engine for all drafts; a wrong value is refused without torch."""
    from graft.assemble.presets import check_draft
    from graft.models.heads.installed import may_have_head, named_head

    head = may_have_head(named_head(options.head))
    for draft in drafts:
        check_draft(draft, draft_model=options.draft_model is not None, head=head)
    first = next((each for each in drafts if each != "plain"), "plain")
    chosen = replace(options, draft=first)
    chosen.check()
    return chosen


def split(text: str, kind: Callable[[str], Any] = str, rule: str = "") -> tuple[Any, ...]:
    """A comma-separated list, each entry once."""
    try:
        return tuple(dict.fromkeys(kind(part.strip()) for part in text.split(",") if part.strip()))
    except ValueError:
        raise InputError(f"{rule}, separated by commas, not {text!r}") from None


class _Bar:
    """A progress bar on stderr."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._task = progress.add_task("measuring")

    def begin(self, total: int, done: int) -> None:
        """Set the number of measurements."""
        self._progress.update(self._task, total=total, completed=done)

    def show(self, text: str) -> None:
        """Name the current one."""
        self._progress.update(self._task, description=text)

    def advance(self) -> None:
        """Count one."""
        self._progress.advance(self._task)

    def say(self, line: str) -> None:
        """Print above the bar."""
        self._progress.console.print(line, highlight=False)


def table_console() -> "Console":
    """Standard output, wide enough for tables where it is not a terminal."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)


def _show(results: "Results", *, json: bool) -> None:
    from graft.bench.summary import notes, summarize
    from graft.bench.table import LEGEND, as_dict, heading, tables

    if json:
        print(json_module.dumps(as_dict(results)))
        return
    console = table_console()
    baseline, summaries = summarize(results)
    console.print(heading(results), style="dim")
    for table in tables(summaries):
        console.print(table.as_rich())
    for note in notes(results, baseline, summaries):
        console.print(f"Warning: {note}.")
    console.print(LEGEND.format(baseline=baseline), style="dim")
