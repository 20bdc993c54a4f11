"""Drafts of a network at every token of recorded outputs, for `graft simulate --traces`."""

import gzip
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.settings import option
from graft.assemble import Drafters, check_draft, load
from graft.bench.result_file import output_hash, read_results
from graft.bench.simulate.recordings import Cell, Recording, recordings_of
from graft.bench.simulate.traces import FORMAT, SOURCE
from graft.decode.engine import Engine
from graft.draft.traced import Tracing, key_of
from graft.errors import InputError
from graft.home import atomic_file
from graft.models.heads.installed import may_have_head
from graft.sampling import SamplingParams
from graft.tree.draft_tree import DraftTree

DIGITS = 6  # of scores


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
    path = settings.out or settings.file.with_suffix(f".{settings.draft}.jsonl.gz")
    write_traces(path, engine, settings.draft, cells, lambda line: sys.stderr.write(f"{line}\n"))
    sys.stderr.write(f"traces: {path}\n")


def write_traces(
    path: Path,
    engine: Engine,
    draft: str,
    cells: dict[Cell, list[Recording]],
    progress: Callable[[str], object] = lambda _: None,
) -> None:
    """Decode every prompt plainly again with a draft at every token, and write the drafts."""
    if not isinstance(engine.drafters, Drafters):
        raise InputError("an engine without presets has nothing to trace")
    tracing = Tracing(engine.drafters[draft])
    engine.drafters[SOURCE] = tracing
    try:
        lines = list(_traced(engine, tracing, cells, progress))
    finally:
        del engine.drafters[SOURCE]
    header = {"record": "traces", "format": FORMAT, "draft": draft, "share": tracing.share}
    with atomic_file(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8") as file:
        for line in (header, *lines):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _traced(
    engine: Engine,
    tracing: Tracing,
    cells: dict[Cell, list[Recording]],
    progress: Callable[[str], object],
) -> Iterator[dict[str, Any]]:
    for cell, recordings in cells.items():
        for place, each in enumerate(recordings, 1):
            progress(f"{cell}: {place} of {len(recordings)}")
            tracing.traces.clear()
            _generate_again(engine, cell, each)
            yield _line(cell, each, tracing.traces[key_of(each.prompt)])


def _generate_again(engine: Engine, cell: Cell, recording: Recording) -> None:
    params = SamplingParams(
        temperature=cell.temperature,
        max_tokens=recording.max_tokens,
        stop_token_ids=recording.end_tokens,
        seed=recording.number,
    )
    result = engine.generate(recording.prompt, params, draft=SOURCE)
    if result.token_ids != recording.output:
        raise InputError(
            f"prompt {recording.number} has another output here than in the result file; "
            "trace with the model, dtype and device of the file"
        )


def _line(cell: Cell, recording: Recording, trees: Sequence[DraftTree]) -> dict[str, Any]:
    return {
        "record": "trace",
        "suite": cell.suite,
        "temperature": cell.temperature,
        "context": cell.context,
        "number": recording.number,
        "output": output_hash([recording.output]),
        "trees": [_packed(tree) for tree in trees],
    }


def _packed(tree: DraftTree) -> list[list[Any]]:
    scores = [round(score, DIGITS) for score in tree.scores.tolist()]
    return [tree.tokens.tolist(), tree.parents.tolist(), scores]
