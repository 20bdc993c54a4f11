"""Traces: the draft trees of a network at every token of the outputs of a result file.

Gzipped JSON lines: a header (the preset, its time in plain steps), then a line for every output.
"""

import gzip
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graft.assemble.drafters import Drafters
from graft.bench.result_file import output_hash
from graft.bench.simulate.recordings import Cell, Recording
from graft.bench.simulate.traced import Trace, Traced, Tracing, key_of
from graft.decode.engine import Engine
from graft.draft.pacing.budget import Choose, best_by_cost, up_to_limit
from graft.errors import InputError
from graft.home import atomic_file
from graft.sampling import SamplingParams
from graft.tree.draft_tree import DraftTree

FORMAT = 1
SOURCE = "traced"
DIGITS = 6  # of scores
# Networks with a fixed tree size; others draft as many nodes as the cost model allows.
FIXED = ("eagle2", "longspec", "rapid-up", "triforce", "triforce-head")
FIXED_PREFIX = "magicdec"
GUIDED = ("casd", "rasd-pld", "rasd-rest")  # presets that a traced network enables


@dataclass(slots=True)
class Traces:
    """Of one draft, by cell and prompt."""

    draft: str
    share: float
    by_cell: dict[Cell, dict[Hashable, Trace]] = field(default_factory=dict)

    @property
    def choose(self) -> Choose:
        """The rule for the number of proposed nodes."""
        fixed = self.draft in FIXED or self.draft.startswith(FIXED_PREFIX)
        return up_to_limit if fixed else best_by_cost

    def drafter(self, cell: Cell, spend: Callable[[float], None]) -> Traced:
        """For the answers of one cell."""
        if cell not in self.by_cell:
            raise InputError(f"the traces of {self.draft} hold nothing of {cell}; trace it too")
        return Traced(self.by_cell[cell], self.choose, share=self.share, spend=spend)


def trace(
    engine: Engine,
    draft: str,
    cells: dict[Cell, list[Recording]],
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Traces, list[dict[str, Any]]]:
    """Decode every prompt plainly again with a draft at every token; the traces, and the lines of
    their file."""
    if not isinstance(engine.drafters, Drafters):
        raise InputError("an engine without presets has nothing to trace")
    tracing = Tracing(engine.drafters[draft])
    engine.drafters[SOURCE] = tracing
    lines: list[dict[str, Any]] = []
    found: dict[Cell, dict[Hashable, Trace]] = {}
    try:
        for cell, recordings in cells.items():
            for place, each in enumerate(recordings, 1):
                progress(f"{cell}: {place} of {len(recordings)}")
                tracing.traces.clear()
                _generate_again(engine, cell, each)
                kept = tracing.traces[key_of(each.prompt)]
                found.setdefault(cell, {})[key_of(each.prompt)] = kept
                lines.append(_line(cell, each, kept))
    finally:
        del engine.drafters[SOURCE]
    header = {"record": "traces", "format": FORMAT, "draft": draft, "share": tracing.share}
    return Traces(draft, tracing.share, found), [header, *lines]


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


def _unpacked(packed: list[list[Any]]) -> DraftTree:
    tokens, parents, scores = packed
    sources = np.ones(len(tokens), np.int16)
    sources[0] = 0
    return DraftTree(
        np.array(tokens, np.int64),
        np.array(parents, np.int32),
        np.array(scores, np.float32),
        sources,
        ("", SOURCE),
    )


def write_traces(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write the file atomically."""
    with atomic_file(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read_traces(path: Path, cells: dict[Cell, list[Recording]]) -> Traces:
    """The traces of these recordings; lines of other outputs are ignored."""
    known = {(cell, each.number): each for cell, some in cells.items() for each in some}
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            header, *lines = (json.loads(line) for line in file)
        if (header["record"], header["format"]) != ("traces", FORMAT):
            raise ValueError(header)
        traces = Traces(header["draft"], float(header["share"]))
        for line in lines:
            cell = Cell(line["suite"], line["temperature"], line["context"])
            recording = known.get((cell, line["number"]))
            if recording and output_hash([recording.output]) == line["output"]:
                trees = [_unpacked(each) for each in line["trees"]]
                traces.by_cell.setdefault(cell, {})[key_of(recording.prompt)] = trees
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError):
        raise InputError(
            f"{path} is no file of traces; make one with python -m benchmarks trace"
        ) from None
    return traces
