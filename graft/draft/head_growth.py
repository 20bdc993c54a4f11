"""How a draft head's guesses grow: level by level for all sequences at once, on the head's device.

Both papers' trees are beams. At every level the nodes of the beam get children, and the best of
these go on: EAGLE-2 keeps the others too, as leaves to choose from in the end, LongSpec does not.
Nothing comes to the host before the last level, so that a device need not wait in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.models.head_runner import HeadRunner, Round
from graft.sampling import Sampler
from graft.verify.draws import preferences


@dataclass(frozen=True, slots=True)
class Beam:
    """`sizes`: how many nodes go on from each level; each gets `children`."""

    sizes: tuple[int, ...]
    children: int
    keeps_all: bool  # the children that do not go on stay in the tree

    @property
    def depth(self) -> int:
        """Levels of guesses, which is also how often the head runs."""
        return len(self.sizes)

    @property
    def rows(self) -> list[int]:
        """Nodes that the head reads for each level: the root, then those that went on."""
        return [1, *self.sizes[:-1]]


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


@torch.inference_mode()
def grow(
    runner: HeadRunner, working: Round, samplers: Sequence[Sampler | None], beam: Beam
) -> Pool:
    """Guesses for the sequences of a round, drawn with their samplers' noise."""
    outputs = working.root()
    nodes = torch.zeros(len(samplers), 1, dtype=torch.int64, device=outputs.device)
    scores = torch.zeros(nodes.shape, dtype=torch.float32, device=outputs.device)
    levels, count = [], 1
    for depth, size in enumerate(beam.sizes):
        tokens, logs = _children(runner, outputs, samplers, depth, beam.children)  # [B, W, C]
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
    return _pool(torch.cat(levels, 2))


def _children(
    runner: HeadRunner,
    outputs: Tensor,
    samplers: Sequence[Sampler | None],
    depth: int,
    count: int,
) -> tuple[Tensor, Tensor]:
    """The likeliest tokens [B, W, C] after outputs [B, W, E], and the logarithms of how far the
    head's draws would go to each."""
    width = outputs.shape[1]
    logits = runner.logits(outputs).flatten(0, 1)
    asked = [(sampler, Level(depth, width)) for sampler in samplers]
    if any(sampler is not None and sampler.adjusts for sampler in samplers):
        whole = logits.new_full((len(logits), runner.config.vocabulary), -torch.inf)
        best = preferences(asked, whole.index_copy_(1, runner.tokens, logits)).topk(
            min(count, whole.shape[1])
        )
        tokens = best.indices
    else:
        best = preferences(asked, logits, runner.tokens).topk(min(count, logits.shape[1]))
        tokens = runner.tokens[best.indices]
    shape = (len(samplers), width, -1)
    return tokens.view(shape), best.values.view(shape)


def _pool(levels: Tensor) -> Pool:
    """From the device, in one piece: all are whole numbers, or 32 bits wide."""
    tokens, parents, logs = levels.cpu().numpy()  # [B, P] each
    before = ((0, 0), (1, 0))  # the root
    return Pool(
        np.pad(tokens.astype(np.int64), before),
        np.pad(parents.astype(np.int64), before, constant_values=-1),
        np.pad(logs, before),
    )
