"""A network's drafts, replayed without the network: by `python -m benchmarks simulate --traces`.

`python -m benchmarks trace` writes the draft trees of a network before every token of plainly
decoded outputs: gzipped JSON lines, a header (the preset, its time in plain steps), then a line for
every output. A drafter with a fixed shape is replayed exactly, because its draft depends on the
text alone. An adaptive drafter is recorded as if nodes cost nothing, then pruned.
"""

import gzip
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graft.bench.result_file import output_hash
from graft.bench.simulate.recordings import Cell, Recording
from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.budget import Choose, best_by_cost, best_of, up_to_limit
from graft.errors import InputError
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, root_only

FORMAT = 2
SOURCE = "traced"
# Networks with a fixed tree size; others draft as many nodes as the cost model allows.
FIXED = ("eagle3", "eagle2", "longspec", "rapid-up", "triforce", "triforce-head")
FIXED_PREFIX = "magicdec"
STORE_GUIDED = "rasd-rest"
GUIDED = ("casd", "casd-prompt", "rasd-pld")  # presets that a recorded network enables
Draft = tuple[DraftTree, list[int]]  # a tree and the first tokens: see Guide
Trace = Sequence[Draft]  # [i]: after the answer's first i + 1 tokens


def key_of(prompt: Sequence[int]) -> Hashable:
    """The key of a prompt's trace."""
    return tuple(prompt)


class Traced:
    """Proposes recorded trees, pruned by `choose`; a draft takes `share` of a plain step's time,
    which `spend` adds to a simulated clock."""

    def __init__(
        self,
        traces: Mapping[Hashable, Trace],
        choose: Choose,
        *,
        share: float = 0.0,
        spend: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._traces, self._choose = traces, choose
        self._share, self._spend = share, spend
        self._replayed: dict[int, Trace] = {}
        self._first_tokens: dict[int, list[int]] = {}

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        trace = self._traces.get(key_of(context.prompt))
        if trace is None:
            raise InputError("the traces are from other prompts; trace this result file")
        self._replayed[context.sequence] = trace

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        drafts = [self._draft(context) for context in contexts]
        self._spend(self._share * float(budget.seconds[0]))
        for context, (_, first_tokens) in zip(contexts, drafts, strict=True):
            self._first_tokens[context.sequence] = first_tokens
        return best_of([tree for tree, _ in drafts], self._choose, budget)

    def first_tokens(self, sequence: int) -> list[int]:
        """See Guide."""
        return self._first_tokens[sequence]

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._replayed.pop(sequence, None)
        self._first_tokens.pop(sequence, None)

    def _draft(self, context: DraftContext) -> Draft:
        trace, position = self._replayed[context.sequence], len(context.tokens) - 1
        if position >= len(trace):
            return root_only(context.root), []
        if trace[position][0].tokens[0] != context.root:
            raise InputError("the traces are from other answers; trace this result file")
        return trace[position]


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


class TracedNetworks:
    """See Networks."""

    def __init__(self, traces: Sequence[Traces]) -> None:
        self._traces = traces
        self.presets = [*(each.draft for each in traces), *(GUIDED if traces else ())]
        self.stores = [STORE_GUIDED] if traces else []

    def drafters(self, draft: str, cell: Cell, spend: Callable[[float], None]) -> dict[str, Traced]:
        """See Networks."""
        parts = [part.partition(":")[0] for part in draft.split("+")]
        guided = any(part in (*GUIDED, STORE_GUIDED) for part in parts)
        return {
            each.draft: each.drafter(cell, spend)
            for each in self._traces
            if guided or each.draft in parts
        }


def _unpacked(packed: list[list[Any]]) -> Draft:
    tokens, parents, scores, first_tokens = packed
    sources = np.ones(len(tokens), np.int16)
    sources[0] = 0
    tree = DraftTree(
        np.array(tokens, np.int64),
        np.array(parents, np.int32),
        np.array(scores, np.float32),
        sources,
        ("", SOURCE),
    )
    return tree, first_tokens


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
