"""A model that replays recorded outputs under a simulated clock.

The loop and the drafters are those of a real run; the network is missing. A step writes no keys
and values, the verified tokens are those of the recording (`RecordedOutputs`), and the clock
advances by the seconds of a cost table.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from graft.kernels.tree_layout import TreeLayout
from graft.models.step_costs import StepCosts
from graft.models.storage import Stateless
from graft.sampling import Process, Sampler
from graft.tree.draft_tree import DraftTree
from graft.verify.verdict import Verdict


class SimulatedClock:
    """Simulated seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The current time."""
        return self.now

    def spend(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds


class NoRows(Stateless):
    """A KV cache without rows."""

    rows, row_bytes = 0, 0

    def resize(self, rows: int) -> None:
        """See Storage."""
        self.rows = rows

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """See Storage."""


class RecordedForward:
    """Replaces the network: constant logits, and the time of a step.

    It has only the part of `Forward` that plain decoding and lookup drafters use.
    """

    asynchronous = False
    sizes: Sequence[int] = ()
    feature_layers: frozenset[int] = frozenset()

    def __init__(
        self, vocabulary: int, costs: StepCosts, clock: SimulatedClock, context: int | None = None
    ) -> None:
        self.storage = NoRows()
        self._costs, self._clock, self._context = costs, clock, context
        self._logits = torch.zeros(1, 1).expand(-1, vocabulary)

    def run(self, tokens: np.ndarray, layout: TreeLayout, outputs: np.ndarray) -> Tensor:
        """See Forward."""
        lengths = [self._length(each) for each in layout.segments]
        nodes = [last - first for first, last in pairwise(layout.first_node.tolist())]
        self._clock.spend(step_seconds(self._costs, lengths, nodes))
        return self._logits.expand(len(outputs), -1)

    def _length(self, segments: list[tuple[int, int]]) -> int:
        return self._context or sum(count for _, count in segments)


def step_seconds(costs: StepCosts, lengths: Sequence[int], nodes: Sequence[int]) -> float:
    """Seconds of a step over several sequences, each with its own context and nodes.

    A table holds one context per entry. The products cost as much as those of all rows together;
    the attention of a sequence is the difference between its context and the shortest one.
    """
    if len(nodes) == 1:
        return costs.step(lengths[0], nodes[0])
    shortest = costs.lengths[0]
    attention = [
        costs.step(length, count) - costs.step(shortest, count)
        for length, count in zip(lengths, nodes, strict=True)
    ]
    return costs.step(shortest, sum(nodes)) + sum(attention)


class RecordedOutputs:
    """Replays recorded outputs batch by batch; the seed of a request is the place of its output.

    The first token of an output comes from logits, which also marks the end of the prefill; the
    other tokens come from a verifier that follows the recording.
    """

    def __init__(self, outputs: Sequence[list[int]], clock: SimulatedClock) -> None:
        self._outputs, self._clock = outputs, clock
        self.begin(())

    def begin(self, group: Iterable[int]) -> None:
        """Start a batch of these outputs."""
        self._waiting = set(group)
        self.first_tokens, self.begun_at = 0, self._clock.now

    def first(self, place: int) -> Process:
        """The `process` of a request: logits with the recorded first token as their maximum."""

        def recorded(tokens: list[int], logits: Tensor) -> Tensor:  # noqa: ARG001
            self.first_tokens += 1
            self._waiting.discard(place)
            self.begun_at = self._clock.now
            first = torch.zeros_like(logits)
            first[self._outputs[place][0]] = 1
            return first

        return recorded

    def verify(
        self,
        tree: DraftTree,
        logits: Tensor,  # noqa: ARG002
        sampler: Sampler,
        drawn: Sequence[int] | None = None,  # noqa: ARG002
    ) -> Verdict:
        """See Verifier."""
        output, children, path = self._outputs[sampler.seed], tree.children, [0]
        while True:
            place = sampler.index + len(path) - 1
            token = output[place] if place < len(output) else 0  # after the end any token will do
            child = children[path[-1]].get(token)
            if child is None:
                break
            path.append(child)
        if self._waiting:
            self.first_tokens += len(path)
        return Verdict(path, token)
