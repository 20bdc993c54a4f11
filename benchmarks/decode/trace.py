"""Drafts of a network at every token of recorded outputs, for `graft simulate --traces`."""

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.settings import option
from graft.assemble.loading import load
from graft.assemble.presets import check_draft
from graft.bench.result_file import read_results
from graft.bench.simulate.recordings import recordings_of
from graft.bench.simulate.traces import trace as traced
from graft.bench.simulate.traces import write_traces
from graft.models.heads.installed import may_have_head


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """Generate the outputs of a result file again and keep a network's drafts."""

    file: Path = option(Path(), "result file of kind decode, with prompts")
    draft: str = option("eagle2", "such as eagle2, longspec, sd")
    out: Path | None = option(None, "gzipped JSON lines; beside the file by default")
    model: str | None = option(None, "if it has another name than in the file")
    draft_model: str | None = option(None, "for sd, sd-tree")
    head: str = option("auto", "folder of a draft head, auto or none")
    gamma: int | None = option(None, "tokens of a draft model's chain")


def trace(settings: TraceSettings) -> None:
    """Write the traces."""
    results = read_results(settings.file)
    cells = recordings_of(results, settings.file)
    head = None if settings.head == "none" else settings.head
    has_model = settings.draft_model is not None
    check_draft(settings.draft, draft_model=has_model, head=may_have_head(head))
    measured = results.headers[0].settings
    engine = load(
        settings.model or measured["model"],
        draft_model=settings.draft_model,
        head=head,
        dtype=measured["dtype"],
        device=measured["device"],
        context_length=measured.get("context_length"),
        draft=settings.draft,
        gamma=settings.gamma,
        max_batch=1,
        prefix_cache=0,
    )
    _, lines = traced(engine, settings.draft, cells, lambda line: sys.stderr.write(f"{line}\n"))
    path = settings.out or settings.file.with_suffix(f".{settings.draft}.jsonl.gz")
    write_traces(path, lines)
    sys.stderr.write(f"traces: {path}\n")
