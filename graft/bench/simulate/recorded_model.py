"""A model that says again what was recorded, in no time, while a clock of its own goes on.

The loop, the drafters and the walk are those of a real run. Only the network is missing: a step
writes no keys and values, its logits are made when the walk asks for them, and it takes the seconds
that a table of step costs says. So what a drafter would have been granted, and when it would have
been asked, is found out without a model.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from graft.kernels.tree_layout import TreeLayout
from graft.models.step_costs import StepCosts


class SimulatedClock:
    """Seconds that would have gone by."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """What time it is."""
        return self.now

    def spend(self, seconds: float) -> None:
        """Let time go by."""
        self.now += seconds


class NoRows:
    """A storage of keys and values that keeps none."""

    rows, row_bytes = 0, 0

    def resize(self, rows: int) -> None:
        """See Storage."""
        self.rows = rows

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """See Storage."""


class RecordedForward:
    """In place of a network: logits that say nothing (`Retold` does), and the time of a step.

    Only what plain decoding and drafters without a network ask of a `Forward` is here.
    """

    asynchronous = False
    sizes: Sequence[int] = ()
    keeps_features = False

    def __init__(
        self, vocabulary: int, costs: StepCosts, clock: SimulatedClock, context: int | None = None
    ) -> None:
        self.storage = NoRows()
        self._costs, self._clock, self._context = costs, clock, context
        self._silence = torch.zeros(1, 1).expand(-1, vocabulary)

    def run(self, tokens: np.ndarray, layout: TreeLayout, outputs: np.ndarray) -> Tensor:
        """See Forward."""
        lengths = [self._length(each) for each in layout.segments]
        nodes = [last - first for first, last in pairwise(layout.first_node.tolist())]
        self._clock.spend(step_seconds(self._costs, lengths, nodes))
        return self._silence.expand(len(outputs), -1)

    def _length(self, segments: list[tuple[int, int]]) -> int:
        return self._context or sum(count for _, count in segments)


def step_seconds(costs: StepCosts, lengths: Sequence[int], nodes: Sequence[int]) -> float:
    """Seconds of a step over several sequences, each with its own context and nodes.

    A table knows one context. The products cost what they do for as many rows together, and every
    sequence's attention what its nodes cost more on top of its context than on top of the shortest.
    """
    if len(nodes) == 1:
        return costs.step(lengths[0], nodes[0])
    shortest = costs.lengths[0]
    attention = [
        costs.step(length, count) - costs.step(shortest, count)
        for length, count in zip(lengths, nodes, strict=True)
    ]
    return costs.step(shortest, sum(nodes)) + sum(attention)


class OneHot:
    """Logits [V] with all weight on one token; the same tensor each time."""

    def __init__(self, vocabulary: int) -> None:
        self._row, self._token = np.zeros(vocabulary, np.float32), 0
        self._logits = torch.from_numpy(self._row)

    def at(self, token: int) -> Tensor:
        """All weight on this one."""
        self._row[self._token], self._row[token] = 0, 1
        self._token = token
        return self._logits


class Retold:
    """The tokens of a recorded answer, as logits: what a request's `process` is."""

    def __init__(self, prompt: list[int], output: list[int], one_hot: OneHot) -> None:
        self._prompt, self._output, self._one_hot = len(prompt), output, one_hot

    def __call__(self, tokens: list[int], logits: Tensor) -> Tensor:  # noqa: ARG002
        """What came after `tokens`; behind the end nothing counts any more: token 0."""
        place = len(tokens) - self._prompt
        return self._one_hot.at(self._output[place] if place < len(self._output) else 0)
