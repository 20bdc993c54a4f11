"""`graft bench --suite rag`: questions over a corpus, every policy and way by turns."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from graft.errors import InputError

if TYPE_CHECKING:
    from graft.bench.rag.report import RagReport
    from graft.bench.rag.settings import RagSettings
    from graft.cli.bench import BenchOptions


def rag_settings(options: "BenchOptions", policy: str | None, ways: str | None) -> "RagSettings":
    """What the options of `graft bench` mean here; InputError for those that mean nothing."""
    from graft.bench.rag.asked import RagAsked

    known = {each.name for each in fields(RagAsked)}
    given = {name: value for name, value in asdict(options).items() if value is not None}
    del given["suite"]
    for name in sorted(given.keys() - known):
        other = "--way REUSE:DRAFT" if name == "draft" else "nothing in its place"
        raise InputError(f"the suite rag has no --{name.replace('_', '-')}; use {other}")
    return RagAsked(**given, policy=policy, way=ways).settings()


def rag_file(settings: "RagSettings") -> Path:
    """Named after what may not change within a file."""
    return Path("results") / f"rag-{Path(settings.model).name}-{settings.dtype}.jsonl"


def rag_report(file: Path, baseline: str | None) -> "RagReport":
    """The figures of a result file."""
    from graft.bench.rag.records import read_rag_results
    from graft.bench.rag.report import report

    return report(read_rag_results(file), baseline)
