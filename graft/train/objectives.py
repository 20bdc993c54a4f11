"""The training objective of each kind of head, and its measurement.

EAGLE heads are trained on their logits, fed with their own outputs for several steps as at
inference (EAGLE-3's training-time test). `paper` is EAGLE-3's distribution over the drafted ids,
and for EAGLE-2 adds EAGLE-1's loss on the features.
LongSpec is trained with the target's last 1 to `shifts` keys masked, as in a draft chain.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graft.models.heads.files import Head
from graft.models.heads.row_masks import chain_masks, shift_mask, window_mask
from graft.train.batches import Batch, anchor_offset
from graft.train.losses import OutputLayer, Supervision, cross_entropy
from graft.train.packing import Rows
from graft.train.settings import Settings
from graft.train.target import Target, TargetOutputs

DEPTH = 5  # chain length when measuring
NOISE_LENGTH = 512  # EAGLE-1's noise is weaker in longer texts
PAPER_TOKENS, PAPER_FEATURES = 0.1, 1.0  # EAGLE-1's weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """`loss` is a sum over tokens; for each draft token, `agreed` [S, B, T] is whether it is the
    target's argmax, and `counted` [S, B, T] whether it is in the loss."""

    loss: Tensor
    agreed: Tensor
    counted: Tensor


class Objective(Protocol):
    """The objective of a kind of head."""

    ahead: int  # distance from a column to the token it predicts

    def learn(self, head: nn.Module, batch: Batch, random: np.random.Generator) -> Outcome:
        """The loss with noise, masked keys and shifted positions, as configured."""

    def measure(self, head: nn.Module, batch: Batch) -> Outcome:
        """Draft `DEPTH` steps ahead, as at inference."""


def counted_tokens(rows: Rows, chosen: np.ndarray, ahead: int) -> int:
    """The number of tokens in the loss."""
    documents, loss_mask = rows.documents[chosen], rows.loss_mask[chosen]
    return int((loss_mask[:, ahead:] & (documents[:, ahead:] == documents[:, :-ahead])).sum())


def _in_loss(batch: Batch, ahead: int) -> Tensor:
    """[B, T]: whether the token `ahead` of a column is in the loss and of the same document, so
    columns that wrap around are not."""
    mask = torch.zeros_like(batch.loss_mask)
    same = batch.documents[:, ahead:] == batch.documents[:, :-ahead]
    mask[:, :-ahead] = batch.loss_mask[:, ahead:] & same
    return mask


def _shifted(
    batch: Batch, random: np.random.Generator, target: Target, settings: Settings
) -> Tensor:
    """Anchor-offset positions [B, T], anywhere in the target's context."""
    context = target.config.get_text_config().max_position_embeddings
    max_offset = max(context - batch.tokens.shape[1], 0)
    draws = [random] * len(batch.tokens)
    if settings.keep_outputs:  # one offset a row, as its outputs are kept
        draws = [np.random.default_rng([settings.seed, row]) for row in batch.rows]
    offsets = torch.tensor([int(each.integers(0, max_offset + 1)) for each in draws])
    return anchor_offset(batch.places, offsets.to(batch.places.device), settings.sinks)


class EagleObjective:
    """Column t has token t + 1 and features t and predicts token t + 2."""

    ahead = 2

    def __init__(self, target: Target, head: Head, settings: Settings) -> None:
        self._target, self._settings = target, settings
        self._layer = OutputLayer.of(target.output, head)

    def learn(self, head: nn.Module, batch: Batch, random: np.random.Generator) -> Outcome:
        """See Objective."""
        spread = self._settings.noise * NOISE_LENGTH / batch.tokens.shape[1]
        noise = torch.Generator(batch.tokens.device).manual_seed(int(random.integers(2**62)))
        positions = batch.places
        if self._settings.offset_positions:
            positions = _shifted(batch, random, self._target, self._settings)
        return self._run(head, batch, positions, self._settings.unroll, (spread, noise))

    def measure(self, head: nn.Module, batch: Batch) -> Outcome:
        """See Objective."""
        steps = max(self._settings.unroll, DEPTH)  # as in training: one compiled graph for both
        outcome = self._run(head, batch, batch.places, steps, None)
        return Outcome(outcome.loss, outcome.agreed[:DEPTH], outcome.counted[:DEPTH])

    def _run(
        self,
        head: nn.Module,
        batch: Batch,
        positions: Tensor,
        steps: int,
        noise: tuple[float, torch.Generator] | None,
    ) -> Outcome:
        target = self._target.forward(batch, positions)
        given = target.features.float()
        if noise and self._settings.kind == "eagle2":
            spread, generator = noise
            uniform = torch.rand(given.shape, generator=generator, device=given.device)
            given = given + (uniform - 0.5) * spread
        embeddings = F.embedding(batch.tokens.roll(-1, 1), self._target.embedding).float()
        outputs = head(embeddings, given, positions, chain_masks(batch.documents, steps))
        mask = _in_loss(batch, self.ahead)
        counted = torch.stack([mask & (batch.places >= step) for step in range(steps)])
        powers = torch.arange(steps, device=counted.device)
        weights = counted * (self._settings.unroll_decay**powers)[:, None, None]
        return self._outcome(outputs, target.last.roll(-1, 1), weights, batch)

    def _outcome(self, outputs: Tensor, features: Tensor, weights: Tensor, batch: Batch) -> Outcome:
        labels = batch.tokens.roll(-self.ahead, 1).flatten()
        supervision = Supervision(
            features.flatten(0, 1),
            labels if self._settings.loss == "token" else None,
            weights.flatten(1),
            renormalised=self._settings.loss == "paper" and self._settings.kind == "eagle3",
        )
        loss, agreed = cross_entropy(outputs.flatten(1, 2), supervision, self._layer)
        if self._settings.loss == "paper" and self._settings.kind == "eagle2":
            distance = F.smooth_l1_loss(
                outputs.float(), features.float().expand_as(outputs), reduction="none"
            ).mean(-1)
            loss = PAPER_TOKENS * loss + PAPER_FEATURES * (distance * weights).sum()
        return Outcome(loss, agreed.view(weights.shape), weights > 0)


class LongSpecObjective:
    """Column t has token t and predicts token t + 1."""

    ahead = 1

    def __init__(self, target: Target, head: Head, settings: Settings) -> None:
        self._target, self._settings, self._window = target, settings, head.config.window
        self._layer = OutputLayer.of(target.output, head)

    def learn(self, head: nn.Module, batch: Batch, random: np.random.Generator) -> Outcome:
        """See Objective."""
        shift = int(random.integers(1, self._settings.shifts + 1))
        positions = batch.places
        if not self._settings.vanilla_positions:
            positions = _shifted(batch, random, self._target, self._settings)
        target = self._target.forward(batch, positions)
        return self._run(head, batch, (target, positions), shift)

    def measure(self, head: nn.Module, batch: Batch) -> Outcome:
        """See Objective."""
        target = self._target.forward(batch, batch.places)
        given = target, batch.places
        found = [self._run(head, batch, given, shift) for shift in range(1, DEPTH + 1)]
        return Outcome(
            torch.stack([each.loss for each in found]).sum(),
            torch.cat([each.agreed for each in found]),
            torch.cat([each.counted for each in found]),
        )

    def _run(
        self, head: nn.Module, batch: Batch, given: tuple[TargetOutputs, Tensor], shift: int
    ) -> Outcome:
        target, positions = given
        embeddings = F.embedding(batch.tokens, self._target.embedding).float()
        window = window_mask(batch.documents, self._window)
        masks = [shift_mask(batch.documents, shift)]
        outputs = head(embeddings, target.kv, positions, window, masks)
        counted = _in_loss(batch, self.ahead)[None]
        labels = batch.tokens.roll(-self.ahead, 1).flatten()
        supervision = Supervision(
            target.last.flatten(0, 1),
            labels if self._settings.loss == "token" else None,
            counted.flatten(1).float(),
        )
        loss, agreed = cross_entropy(outputs.flatten(1, 2), supervision, self._layer)
        return Outcome(loss, agreed.view(counted.shape), counted)


OBJECTIVES: dict[str, type[EagleObjective | LongSpecObjective]] = {
    "eagle3": EagleObjective,
    "eagle2": EagleObjective,
    "longspec": LongSpecObjective,
}


def chains(outcome: Outcome) -> tuple[Tensor, int]:
    """The number of chains accepted up to each depth [S], and the number of chains.

    A chain that starts at column t drafts depth i at column t + i with the text's own tokens as
    input; it continues while the argmax of head and target agree. On greedy output of the target
    this equals the acceptance of greedy decoding.
    """
    steps, _, columns = outcome.agreed.shape
    whole = columns - steps + 1
    started = torch.stack([outcome.counted[i, :, i : i + whole] for i in range(steps)]).all(0)
    kept = torch.stack([outcome.agreed[i, :, i : i + whole] for i in range(steps)]).cumprod(0)
    return (kept * started).sum((1, 2)), int(started.sum())
