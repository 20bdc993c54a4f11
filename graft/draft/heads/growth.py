"""How a draft head's guesses grow: level by level for all sequences at once, on the head's device.

Both papers' trees are beams. At every level the nodes of the beam get children, and the best of
these go on: EAGLE-2 keeps the others too, as leaves to choose from in the end, LongSpec does not.
Nothing comes to the host before the last level, so that a device need not wait in between.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from graft.models.arena import Extent
from graft.models.heads.runner import HeadRunner, Round, Text
from graft.sampling import Sampler
from graft.verify.draws import preferences

BATCHES = (1, 2, 4, 8, 16)  # sequences that a captured round is made for


@dataclass(frozen=True, slots=True)
class Beam:
    """`sizes`: how many nodes go on from each level; each gets `children`."""

    sizes: tuple[int, ...]
    children: int
    keeps_all: bool  # the children that do not go on stay in the tree

    def __post_init__(self) -> None:
        pairs = zip(self.sizes, self.rows, strict=True)
        assert all(size <= above * self.children for size, above in pairs), "more than are born"

    @property
    def depth(self) -> int:
        """Levels of guesses, which is also how often the head runs."""
        return len(self.sizes)

    @property
    def rows(self) -> list[int]:
        """Nodes that the head reads for each level: the root, then those that went on."""
        return [1, *self.sizes[:-1]]

    @property
    def nodes(self) -> int:
        """Of the whole pool, the root left out."""
        return sum(n * self.children for n in self.rows) if self.keeps_all else sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Level:
    """Places for draws: so many nodes, all so deep. What was drafted before them is not known to
    the host, so penalties count what was emitted alone."""

    depth: int
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def depths(self) -> np.ndarray:
        """[n]: how far ahead they are."""
        return np.full(self.count, self.depth)

    def paths(self) -> list[list[int]]:
        """Nothing."""
        return [[]] * self.count


@dataclass(frozen=True, slots=True)
class Pool:
    """All nodes that a round considered, in level order, node 0 the root: for each sequence their
    tokens, parents and the logarithms of the head's shares, given their parents."""

    tokens: np.ndarray  # [B, P] int64; the root's is not set
    parents: np.ndarray  # [B, P] int64
    logs: np.ndarray  # [B, P] float64


# (outputs [B, W, E], their depth, how many) -> the likeliest tokens after each [B, W, C] and the
# logarithms of the head's shares of them
Choose = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A sequence that wants a tree: what is not read of it yet, the target's rows, and whose draws
    its guesses follow, None for greedy ones."""

    text: Text
    extent: Extent
    sampler: Sampler | None


Waiting = Callable[[], Pool]


class Growth(Protocol):
    """Grows trees for several sequences."""

    def begin(self, asked: Sequence[Asked], beam: Beam) -> Waiting:
        """Read the texts and start to grow behind them; what is returned waits for the trees."""


@dataclass(frozen=True, slots=True)
class LaunchedGrowth:
    """One operation after the other, on any device."""

    runner: HeadRunner

    def begin(self, asked: Sequence[Asked], beam: Beam) -> Waiting:
        """See Growth."""
        texts = [each.text for each in asked]
        self.runner.read([text for text in texts if text.tokens])
        memories, extents = [text.memory for text in texts], [each.extent for each in asked]
        working = self.runner.round(memories, extents)
        preferred = Preferred(self.runner, [each.sampler for each in asked])
        return partial(as_pool, grow(working, preferred, beam))


@torch.inference_mode()
def grow(working: Round, choose: Choose, beam: Beam) -> Tensor:
    """[3, B, P]: tokens, parents and logarithms of all nodes but the root; see Pool."""
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
        going = found.gather(2, best.indices.expand(3, -1, -1))
        levels.append(found if beam.keeps_all else going)
        places = torch.arange(best.indices.shape[1], device=nodes.device).expand_as(best.indices)
        nodes = count + (best.indices if beam.keeps_all else places)
        count += levels[-1].shape[2]
        if depth + 1 < beam.depth:
            outputs = working.level(going[0].long(), above)
    return torch.cat(levels, 2)


@dataclass(frozen=True, slots=True)
class Preferred:
    """Children by the draws that the sequences' samplers would make."""

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
        asked = [(sampler, Level(depth, width)) for sampler in self.samplers]
        best = preferences(asked, logits, tokens).topk(min(count, logits.shape[1]))
        shape = (len(self.samplers), width, -1)
        return tokens[best.indices].view(shape), best.values.view(shape)


def as_pool(levels: Tensor) -> Pool:
    """From the device, in one piece: all are whole numbers, or 32 bits wide."""
    return with_roots(*levels.cpu().numpy())


def with_roots(tokens: np.ndarray, parents: np.ndarray, logs: np.ndarray) -> Pool:
    """A pool of arrays [B, P - 1] that lack the roots."""
    size = len(tokens), tokens.shape[1] + 1
    whole = Pool(np.zeros(size, np.int64), np.full(size, -1), np.zeros(size))
    whole.tokens[:, 1:], whole.parents[:, 1:], whole.logs[:, 1:] = tokens, parents, logs
    return whole
