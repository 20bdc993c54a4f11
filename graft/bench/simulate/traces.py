"""Traces: the draft trees of a network at every token of the outputs of a result file.

Gzipped JSON lines: a header (the preset, its time in plain steps), then a line for every output.
`python -m benchmarks trace` writes them.
"""

import gzip
import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graft.bench.result_file import output_hash
from graft.bench.simulate.recordings import Cell, Recording
from graft.bench.simulate.traced import Trace, Traced, key_of
from graft.draft.pacing.budget import Choose, best_by_cost, up_to_limit
from graft.errors import InputError
from graft.tree.draft_tree import DraftTree

FORMAT = 1
SOURCE = "traced"
# Networks with a fixed tree size; others draft as many nodes as the cost model allows.
FIXED = ("eagle3", "eagle2", "longspec", "rapid-up", "triforce", "triforce-head")
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
