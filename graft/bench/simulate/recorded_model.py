"""A model that says again what was recorded, in no time, while a clock of its own goes on.

The loop and the drafters are those of a real run. Only the network is missing: a step writes no
keys and values, what it would have decided is looked up (`Retelling`), and it takes the seconds
that a table of step costs says. So what a drafter would have been granted, and when it would have
been asked, is found out without a model.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from graft.kernels.tree_layout import TreeLayout
from graft.models.step_costs import StepCosts
from graft.sampling import Process, Sampler
from graft.tree.draft_tree import DraftTree
from graft.verify.verdict import Verdict


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
    """In place of a network: logits that say nothing (`Retelling` does), and the time of a step.

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


class Retelling:
    """Recorded answers, told again group by group. The seeds of requests are their places.

    The first token of each comes as logits, by which it also notes when all of a group have begun
    and how many tokens had come by then; all others by a verifier that goes down what was recorded,
    as the walk would with a network.
    """

    def __init__(self, outputs: Sequence[list[int]], clock: SimulatedClock) -> None:
        self._outputs, self._clock = outputs, clock
        self.begin(())

    def begin(self, group: Iterable[int]) -> None:
        """These answers come next."""
        self._waiting = set(group)
        self.first_tokens, self.begun_at = 0, self._clock.now

    def first(self, place: int) -> Process:
        """What makes the logits of an answer's first token say it: a request's `process`."""

        def told(tokens: list[int], logits: Tensor) -> Tensor:  # noqa: ARG001
            self.first_tokens += 1
            self._waiting.discard(place)
            self.begun_at = self._clock.now
            said = torch.zeros_like(logits)
            said[self._outputs[place][0]] = 1
            return said

        return told

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
            token = output[place] if place < len(output) else 0  # behind the end nothing counts
            child = children[path[-1]].get(token)
            if child is None:
                break
            path.append(child)
        if self._waiting:
            self.first_tokens += len(path)
        return Verdict(path, token)
