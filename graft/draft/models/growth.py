"""How a draft model's guesses grow: as a chain, or as a tree by EAGLE-2's rule.

Either makes one forward per level for all sequences together. A draft at temperatures above 0 is
drawn with the noise that the target's tokens will be drawn with: the two agree far more often than
two draws of their own would. A chain takes what wins the draw, a tree also what comes next in it.
Rules that weigh the drafter's distribution q against the target's want draws of its own instead:
such a chain is `sampled`, and carries its q.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from graft.draft.models.guess import Guess
from graft.models.language_model import LanguageModel
from graft.sampling import upload
from graft.tree.draft_tree import DraftTree, chain
from graft.verify.draws import SamplerNodes, preferences, sampled

# A token for each guess, on the device, is read: the logits [M, V] after them
ReadDrawn = Callable[[Tensor], Tensor]


class Growth(Protocol):
    """A way to grow `depth` levels of guesses."""

    depth: int
    scratch: int  # rows that the guesses of a sequence take at most
    keeps_root: bool  # whether rows of the root stay in the cache from level to level
    sampled: bool  # whether the draft carries its q, and so may not be cut by what was drawn

    def goes_on(self, guess: Guess) -> bool:
        """Whether the guess may get another level."""

    def rows(self, guess: Guess) -> int:
        """Rows that the next level's forward takes."""

    def read(self, model: LanguageModel, guesses: Sequence[Guess]) -> Tensor:
        """One forward: logits [M, V] after the frontiers of all guesses, side by side."""

    def extend(self, guesses: Sequence[Guess], logits: Tensor) -> None:
        """Add the next level, given those logits."""

    def foresees(self, guesses: Sequence[Guess]) -> bool:
        """Whether it can `extend_ahead`."""

    def extend_ahead(
        self, guesses: Sequence[Guess], logits: Tensor, levels: int, read: ReadDrawn
    ) -> None:
        """The same with several levels, without a wait for the device in between."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A place for a draw: after these tokens, which are drafted and not emitted."""

    tokens: list[int]

    def __len__(self) -> int:
        return 1

    @property
    def depths(self) -> np.ndarray:
        """[1]: how far ahead it is."""
        return np.array([len(self.tokens)])

    def paths(self) -> list[list[int]]:
        """The one path to it."""
        return [self.tokens]


@dataclass(frozen=True, slots=True)
class ChainGrowth:
    """One token after another, at most `depth`. What was read of the chain stays in the cache, so
    that what comes true need not be read again. It ends with the first token that the draft model
    gives less than `confidence`."""

    depth: int
    confidence: float = 0.0
    sampled: bool = False
    keeps_root = True

    @property
    def scratch(self) -> int:
        """See Growth."""
        return self.depth

    def goes_on(self, guess: Guess) -> bool:
        """See Growth."""
        return guess.depth < self.depth and guess.shares[-1] >= self.confidence

    def rows(self, guess: Guess) -> int:  # noqa: ARG002
        """See Growth."""
        return 1

    def read(self, model: LanguageModel, guesses: Sequence[Guess]) -> Tensor:
        """See Growth."""
        extents = [guess.reader.extent for guess in guesses]
        tokens = [guess.tokens[-1] for guess in guesses]
        logits, _ = model.score_all(extents, [chain([token]) for token in tokens])
        model.commit_all([(extent, [0]) for extent in extents])
        for guess, token in zip(guesses, tokens, strict=True):
            guess.reader.guessed.append(token)
        return logits

    def extend(self, guesses: Sequence[Guess], logits: Tensor) -> None:
        """See Growth."""
        tokens, shares = self._draw(guesses, _asked(guesses), logits)
        _lengthen(guesses, [tokens.tolist()], [shares.tolist()])

    def foresees(self, guesses: Sequence[Guess]) -> bool:
        """See Growth."""
        samplers = [guess.reader.context.sampler for guess in guesses]
        return not self.confidence and all(each is None or each.stateless for each in samplers)

    def extend_ahead(
        self, guesses: Sequence[Guess], logits: Tensor, levels: int, read: ReadDrawn
    ) -> None:
        """See Growth. Which tokens the levels hold, the host learns at the end."""
        samplers = [guess.reader.context.sampler for guess in guesses]
        drawn: list[tuple[Tensor, Tensor]] = []
        for level in range(levels):
            after = read(drawn[-1][0]) if drawn else logits
            places = [Ahead([0] * (guess.depth + level)) for guess in guesses]  # how far will do
            drawn.append(self._draw(guesses, list(zip(samplers, places, strict=True)), after))
        tokens, shares = (torch.stack(each).tolist() for each in zip(*drawn, strict=True))
        _lengthen(guesses, tokens, shares)
        for guess in guesses:
            guess.reader.guessed += guess.tokens[-levels:-1]

    def _draw(
        self, guesses: Sequence[Guess], asked: list[SamplerNodes], logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The next token of each guess, and the draft model's probability of it."""
        if not self.sampled:
            best = preferences(asked, logits).max(-1)
            return best.indices, best.values.exp()
        tokens, probs = sampled(asked, logits)
        for guess, row in zip(guesses, probs, strict=True):
            guess.probs.append(row)
        return tokens, probs.gather(1, tokens[:, None])[:, 0]


@dataclass(frozen=True, slots=True)
class TreeGrowth:
    """EAGLE-2's dynamic tree: at every level the `width` best nodes get `width` children each.

    The rows of a level are computed again with those below it, and thrown away after the round.
    """

    depth: int
    width: int
    keeps_root = False
    sampled = False

    @property
    def scratch(self) -> int:
        """See Growth."""
        return 1 + self.width * self.depth

    def goes_on(self, guess: Guess) -> bool:
        """See Growth."""
        return guess.depth < self.depth

    def rows(self, guess: Guess) -> int:
        """See Growth."""
        return len(guess.above(guess.frontier))

    def read(self, model: LanguageModel, guesses: Sequence[Guess]) -> Tensor:
        """See Growth."""
        trees, wanted, first = [], [], 0
        for guess in guesses:
            nodes = guess.above(guess.frontier)
            trees.append(_part(guess, nodes, model.vocabulary))
            place = {node: i for i, node in enumerate(nodes)}
            wanted += [first + place[node] for node in guess.frontier]
            first += len(nodes)
        logits, _ = model.score_all([guess.reader.extent for guess in guesses], trees)
        return logits[upload(torch.tensor(wanted), logits.device)]

    def foresees(self, guesses: Sequence[Guess]) -> bool:  # noqa: ARG002
        """See Growth. Which nodes are the best, the host finds out."""
        return False

    def extend(self, guesses: Sequence[Guess], logits: Tensor) -> None:
        """See Growth."""
        best = preferred(guesses, logits).topk(min(self.width, logits.shape[1]))
        shares, tokens = best.values.exp().tolist(), best.indices.tolist()
        row = 0
        for guess in guesses:
            added = []
            for node in guess.frontier:
                count = max(1, sum(share > 0 for share in shares[row]))
                added += guess.add(node, tokens[row][:count], shares[row][:count])
                row += 1
            added.sort(key=lambda node: -guess.scores[node])
            guess.frontier = sorted(added[: self.width])
            guess.depth += 1


def _lengthen(
    guesses: Sequence[Guess], tokens: Sequence[list[int]], shares: Sequence[list[float]]
) -> None:
    """By a node for every level, of which each has a token and a share for every guess."""
    for place, guess in enumerate(guesses):
        for token, share in zip(tokens, shares, strict=True):
            guess.frontier = guess.add(guess.frontier[0], [token[place]], [share[place]])
            guess.depth += 1


def _part(guess: Guess, nodes: list[int], vocabulary: int) -> DraftTree:
    """The tree of some of the nodes, the root and all their ancestors among them, for a model that
    knows so many ids: the root may be another."""
    place = {node: i for i, node in enumerate(nodes)}
    place[-1] = -1
    return DraftTree(
        np.array([min(guess.tokens[node], vocabulary - 1) for node in nodes]),
        np.array([place[guess.parents[node]] for node in nodes], np.int32),
        np.ones(len(nodes), np.float32),
        np.zeros(len(nodes), np.int16),
    )


def preferred(guesses: Sequence[Guess], logits: Tensor) -> Tensor:
    """[M, V] for the frontiers' logits: logarithms of how far the draft model's draws would go to
    each token, with the noise that the target's will be made with.

    A greedy sampler's are those of temperature 1: they say how sure the draft model is.
    """
    return preferences(_asked(guesses), logits)


def _asked(guesses: Sequence[Guess]) -> list[SamplerNodes]:
    """Where the frontiers' next tokens are drawn, and for whom."""
    return [
        (guess.reader.context.sampler, Ahead(guess.path(node)))
        for guess in guesses
        for node in guess.frontier
    ]
