"""What each kind of head learns from a batch, and how it is measured.

EAGLE-2 learns its next features as the target's output layer reads them, fed with its own features
for several steps as at inference (HASS, EAGLE-3's training-time test); EAGLE-1's loss on the
features themselves is `paper`. LongSpec learns with one to `shifts` of the target's last keys
hidden, because a chain of guesses runs ahead of them.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graft.train.batches import Batch, anchor_offset
from graft.train.losses import Lesson, OutputLayer, cross_entropy
from graft.train.packing import Rows
from graft.train.settings import Settings
from graft.train.target import Target

DEPTH = 5  # guesses in a row when measuring
NOISE_LENGTH = 512  # EAGLE-1's noise is weaker in longer texts
PAPER_TOKENS, PAPER_FEATURES = 0.1, 1.0  # EAGLE-1's weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """`loss` is a sum over tokens; `agreed` and `counted` [S, B, T] say of each guess, as many
    steps ahead, whether it is the target's likeliest and whether it was asked for."""

    loss: Tensor
    agreed: Tensor
    counted: Tensor


class Objective(Protocol):
    """How a kind of head learns."""

    ahead: int  # how far the token a column guesses lies behind the column

    def learn(self, head: nn.Module, batch: Batch, random: np.random.Generator) -> Outcome:
        """With noise, hidden keys and moved positions, as the settings say."""

    def measure(self, head: nn.Module, batch: Batch) -> Outcome:
        """Guesses `DEPTH` steps ahead, as at inference."""


def counted_tokens(rows: Rows, chosen: np.ndarray, ahead: int) -> int:
    """How many tokens of the rows are asked for."""
    documents, learned = rows.documents[chosen], rows.learned[chosen]
    return int((learned[:, ahead:] & (documents[:, ahead:] == documents[:, :-ahead])).sum())


def _asked(batch: Batch, ahead: int) -> Tensor:
    """[B, T]: whether the token `ahead` of a column is learned and of the same document.

    So what is rolled into the last columns from the first is never asked for.
    """
    asked = torch.zeros_like(batch.learned)
    same = batch.documents[:, ahead:] == batch.documents[:, :-ahead]
    asked[:, :-ahead] = batch.learned[:, ahead:] & same
    return asked


def _moved(batch: Batch, random: np.random.Generator, target: Target, settings: Settings) -> Tensor:
    """Anchor-offset positions [B, T], anywhere in the target's context."""
    context = target.config.get_text_config().max_position_embeddings
    most = max(context - batch.tokens.shape[1], 0)
    offsets = torch.from_numpy(random.integers(0, most + 1, len(batch.tokens)))
    return anchor_offset(batch.places, offsets.to(batch.places.device), settings.sinks)


class EagleObjective:
    """Column t: token t + 1 and feature t; it guesses token t + 2."""

    ahead = 2

    def __init__(self, target: Target, layer: OutputLayer, settings: Settings) -> None:
        self._target, self._layer, self._settings = target, layer, settings

    def learn(self, head: nn.Module, batch: Batch, random: np.random.Generator) -> Outcome:
        """See Objective."""
        spread = self._settings.noise * NOISE_LENGTH / batch.tokens.shape[1]
        noise = torch.Generator(batch.tokens.device).manual_seed(int(random.integers(2**62)))
        positions = batch.places
        if self._settings.offset_positions:
            positions = _moved(batch, random, self._target, self._settings)
        return self._run(head, batch, positions, self._settings.unroll, (spread, noise))

    def measure(self, head: nn.Module, batch: Batch) -> Outcome:
        """See Objective."""
        return self._run(head, batch, batch.places, DEPTH, None)

    def _run(
        self,
        head: nn.Module,
        batch: Batch,
        positions: Tensor,
        steps: int,
        noise: tuple[float, torch.Generator] | None,
    ) -> Outcome:
        features = self._target.read(batch, positions).features
        given = features.float()
        if noise:
            spread, generator = noise
            uniform = torch.rand(given.shape, generator=generator, device=given.device)
            given = given + (uniform - 0.5) * spread
        embeddings = F.embedding(batch.tokens.roll(-1, 1), self._target.embedding).float()
        outputs = head(embeddings, given, positions, batch.visible, steps)
        asked = _asked(batch, self.ahead)
        counted = torch.stack([asked & (batch.places >= step) for step in range(steps)])
        powers = torch.arange(steps, device=counted.device)
        weights = counted * (self._settings.unroll_decay**powers)[:, None, None]
        return self._held_against(outputs, features.roll(-1, 1), weights, batch)

    def _held_against(
        self, outputs: Tensor, features: Tensor, weights: Tensor, batch: Batch
    ) -> Outcome:
        labels = batch.tokens.roll(-self.ahead, 1).flatten()
        lesson = Lesson(
            features.flatten(0, 1),
            labels if self._settings.loss == "token" else None,
            weights.flatten(1),
        )
        loss, agreed = cross_entropy(outputs.flatten(1, 2), lesson, self._layer)
        if self._settings.loss == "paper":
            distance = F.smooth_l1_loss(
                outputs.float(), features.float().expand_as(outputs), reduction="none"
            ).mean(-1)
            loss = PAPER_TOKENS * loss + PAPER_FEATURES * (distance * weights).sum()
        return Outcome(loss, agreed.view(weights.shape), weights > 0)


class LongSpecObjective:
    """Column t: token t; it guesses token t + 1."""

    ahead = 1

    def __init__(self, target: Target, layer: OutputLayer, settings: Settings) -> None:
        self._target, self._layer, self._settings = target, layer, settings

    def learn(self, head: nn.Module, batch: Batch, random: np.random.Generator) -> Outcome:
        """See Objective."""
        shift = int(random.integers(1, self._settings.shifts + 1))
        positions = batch.places
        if not self._settings.vanilla_positions:
            positions = _moved(batch, random, self._target, self._settings)
        return self._run(head, batch, positions, [shift])

    def measure(self, head: nn.Module, batch: Batch) -> Outcome:
        """See Objective."""
        return self._run(head, batch, batch.places, list(range(1, DEPTH + 1)))

    def _run(self, head: nn.Module, batch: Batch, positions: Tensor, shifts: list[int]) -> Outcome:
        reading = self._target.read(batch, positions)
        embeddings = F.embedding(batch.tokens, self._target.embedding).float()
        behind = torch.tensor(shifts, device=embeddings.device)
        outputs = head(embeddings, reading.memory, positions, batch.visible, behind)
        asked = _asked(batch, self.ahead)
        counted = asked.expand(len(shifts), *asked.shape)
        labels = batch.tokens.roll(-self.ahead, 1).flatten()
        lesson = Lesson(
            reading.features.flatten(0, 1),
            labels if self._settings.loss == "token" else None,
            counted.flatten(1).float(),
        )
        loss, agreed = cross_entropy(outputs.flatten(1, 2), lesson, self._layer)
        return Outcome(loss, agreed.view(counted.shape), counted)


OBJECTIVES: dict[str, type[EagleObjective | LongSpecObjective]] = {
    "eagle2": EagleObjective,
    "longspec": LongSpecObjective,
}


def chains(outcome: Outcome) -> tuple[Tensor, int]:
    """How many chains of guesses went at least so far [S], and how many were begun.

    A chain begun at column t guesses step i at column t + i, told the text's own tokens so far; it
    goes on while the head's likeliest token is the target's. On text the target wrote greedily
    this is what greedy decoding accepts.
    """
    steps, _, columns = outcome.agreed.shape
    whole = columns - steps + 1
    begun = torch.stack([outcome.counted[i, :, i : i + whole] for i in range(steps)]).all(0)
    kept = torch.stack([outcome.agreed[i, :, i : i + whole] for i in range(steps)]).cumprod(0)
    return (kept * begun).sum((1, 2)), int(begun.sum())
