"""How a draft head's tree grows: level by level for all sequences at once, on the head's device.

The trees of EAGLE-2 and LongSpec are beams. At every level the nodes of the beam get children, and
the best of these form the next beam. EAGLE-2 keeps the other children as candidate leaves, LongSpec
drops them. The host gets the tokens after the last level only, so the device never waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from graft.models.arena import Extent
from graft.models.heads.runner import HeadRunner, Round, Text
from graft.sampling import Sampler
from graft.verify.draws import Positions, preferences

BATCHES = (1, 2, 4, 8, 16)  # batch sizes that graphs are captured for


@dataclass(frozen=True, slots=True)
class Beam:
    """The shape of a tree: `sizes` are the nodes of each level that get `children` each."""

    sizes: tuple[int, ...]
    children: int
    keeps_all: bool  # whether children outside the next beam stay in the tree

    def __post_init__(self) -> None:
        pairs = zip(self.sizes, self.rows, strict=True)
        assert all(size <= above * self.children for size, above in pairs), "more than children"

    @property
    def depth(self) -> int:
        """Levels, which is also the number of the head's forwards."""
        return len(self.sizes)

    def limited(self, depth: int) -> "Beam":
        """Its first levels, at most `depth`."""
        return self if depth >= self.depth else replace(self, sizes=self.sizes[:depth])

    @property
    def rows(self) -> list[int]:
        """Nodes of each forward: the root, then the beam of each level."""
        return [1, *self.sizes[:-1]]

    @property
    def nodes(self) -> int:
        """All candidate nodes without the root."""
        return sum(n * self.children for n in self.rows) if self.keeps_all else sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Candidates:
    """All nodes of a batch of beams in level order, node 0 the root. `logs` are the logarithms of
    the head's probabilities given the parents."""

    tokens: np.ndarray  # [B, P] int64; the root's is not set
    parents: np.ndarray  # [B, P] int64
    logs: np.ndarray  # [B, P] float64


# (outputs [B, W, E], their depth, how many) -> the best tokens after each [B, W, C] and their logs
Choose = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class DraftInput:
    """One sequence to draft for: the tokens that the head has not processed yet, the target's
    rows, and the sampler whose noise the draft uses (None: greedy)."""

    text: Text
    extent: Extent
    sampler: Sampler | None


PendingCandidates = Callable[[], Candidates]


class Growth(Protocol):
    """Grows trees for several sequences."""

    asynchronous: ClassVar[bool]  # whether `begin` returns while the device grows them

    def begin(self, inputs: Sequence[DraftInput], beam: Beam) -> PendingCandidates:
        """Process the new tokens and start the trees; the returned function waits for them."""


@dataclass(frozen=True, slots=True)
class LaunchedGrowth:
    """One operation after the other, on any device."""

    runner: HeadRunner
    asynchronous: ClassVar[bool] = False

    def begin(self, inputs: Sequence[DraftInput], beam: Beam) -> PendingCandidates:
        """See Growth."""
        texts = [each.text for each in inputs]
        self.runner.read([text for text in texts if text.tokens])
        memories, extents = [text.memory for text in texts], [each.extent for each in inputs]
        working = self.runner.round(memories, extents)
        choose = SampledChildren(self.runner, [each.sampler for each in inputs])
        return partial(from_device, grow(working, choose, beam))


@torch.inference_mode()
def grow(working: Round, choose: Choose, beam: Beam) -> Tensor:
    """[3, B, P]: tokens, parents and logs of all nodes but the root; see Candidates."""
    outputs = working.root()
    nodes = torch.zeros(outputs.shape[:2], dtype=torch.int64, device=outputs.device)
    scores = torch.zeros(nodes.shape, dtype=torch.float32, device=outputs.device)
    levels, count = [], 1
    for depth, size in enumerate(beam.sizes):
        tokens, logs = choose(outputs, depth, beam.children)
        totals = (scores[..., None] + logs).flatten(1)
        best = totals.topk(min(size, totals.shape[1]))
        above, scores = best.indices // tokens.shape[2], best.values
        parents = nodes[..., None].expand_as(tokens)
        found = torch.stack([tokens.double(), parents.double(), logs.double()]).flatten(2)
        selected = found.gather(2, best.indices.expand(3, -1, -1))
        levels.append(found if beam.keeps_all else selected)
        places = torch.arange(best.indices.shape[1], device=nodes.device).expand_as(best.indices)
        nodes = count + (best.indices if beam.keeps_all else places)
        count += levels[-1].shape[2]
        if depth + 1 < beam.depth:
            outputs = working.level(selected[0].long(), above)
    return torch.cat(levels, 2)


@dataclass(frozen=True, slots=True)
class SampledChildren:
    """The children that the sequences' samplers prefer; see Choose."""

    runner: HeadRunner
    samplers: Sequence[Sampler | None]

    def __call__(self, outputs: Tensor, depth: int, count: int) -> tuple[Tensor, Tensor]:
        """See Choose."""
        runner, width = self.runner, outputs.shape[1]
        logits, tokens = runner.logits(outputs).flatten(0, 1), runner.tokens
        if any(sampler is not None and sampler.adjusts for sampler in self.samplers):
            whole = logits.new_full((len(logits), runner.config.vocabulary), -torch.inf)
            logits = whole.index_copy_(1, tokens, logits)
            tokens = torch.arange(logits.shape[1], device=logits.device)
        positions = [(sampler, Positions(depth, width)) for sampler in self.samplers]
        best = preferences(positions, logits, tokens).topk(min(count, logits.shape[1]))
        shape = (len(self.samplers), width, -1)
        return tokens[best.indices].view(shape), best.values.view(shape)


def from_device(levels: Tensor) -> Candidates:
    """Copy the output of `grow` to the host in one piece; its float64 holds every value exactly."""
    return with_roots(*levels.cpu().numpy())


def with_roots(tokens: np.ndarray, parents: np.ndarray, logs: np.ndarray) -> Candidates:
    """Candidates from arrays [B, P - 1] without the roots."""
    size = len(tokens), tokens.shape[1] + 1
    whole = Candidates(np.zeros(size, np.int64), np.full(size, -1), np.zeros(size))
    whole.tokens[:, 1:], whole.parents[:, 1:], whole.logs[:, 1:] = tokens, parents, logs
    return whole


def joined(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of several batches as one."""
    tokens, parents, logs = (
        np.concatenate([getattr(each, name) for each in parts])
        for name in ("tokens", "parents", "logs")
    )
    return Candidates(tokens, parents, logs)
