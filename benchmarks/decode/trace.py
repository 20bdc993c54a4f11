"""Drafts of a network at every token of recorded outputs; `simulate --traces` replays them."""

import gzip
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.decode.traces import FORMAT, SOURCE, Draft, key_of
from benchmarks.settings import option
from graft.assemble.drafters import Drafters
from graft.assemble.loading import load
from graft.assemble.presets import check_draft
from graft.bench.result_file import output_hash, read_results
from graft.bench.simulate.recordings import Cell, Recording, recordings_of
from graft.decode.engine import Engine
from graft.draft.combined import Guide
from graft.draft.drafter import Budget, DraftContext, Drafter
from graft.errors import InputError
from graft.home import atomic_file
from graft.models.heads.installed import may_have_head
from graft.models.language_model import TargetStep
from graft.sampling import SamplingParams
from graft.tree.draft_tree import DraftTree, root_only

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


class Tracing:
    """Records what `drafter` proposes, and proposes nothing itself."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.traces: dict[Hashable, list[Draft]] = defaultdict(list)
        self._drafting: list[float] = []
        self._steps: list[float] = []
        self._since: float | None = None  # the last proposal's end

    @property
    def share(self) -> float:
        """The time of a draft, in steps of plain decoding."""
        return median(self._drafting) / median(self._steps) if self._steps else 0.0

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        self._since = None
        self._drafter.start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        began = time.perf_counter()
        if self._since is not None:
            self._steps.append(began - self._since)
        free = replace(budget, seconds=np.full_like(budget.seconds, budget.seconds[0]))
        for context, tree in zip(contexts, self._drafter.propose(contexts, free), strict=True):
            first_tokens = tree.tokens[tree.parents == 0].tolist()
            if isinstance(self._drafter, Guide):
                first_tokens = self._drafter.first_tokens(context.sequence)
            self.traces[key_of(context.prompt)].append((replace(tree, probs=None), first_tokens))
        self._since = time.perf_counter()
        self._drafting.append(self._since - began)
        return [root_only(context.root) for context in contexts]

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        self._drafter.observe(steps)

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._drafter.finish(sequence)


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


def _line(cell: Cell, recording: Recording, drafts: Sequence[Draft]) -> dict[str, Any]:
    return {
        "record": "trace",
        "suite": cell.suite,
        "temperature": cell.temperature,
        "context": cell.context,
        "number": recording.number,
        "output": output_hash([recording.output]),
        "trees": [_packed(*draft) for draft in drafts],
    }


def _packed(tree: DraftTree, first_tokens: list[int]) -> list[list[Any]]:
    scores = [round(score, DIGITS) for score in tree.scores.tolist()]
    return [tree.tokens.tolist(), tree.parents.tolist(), scores, first_tokens]
