"""Cross-entropy against the target without logits of all tokens at once.

Output layers are frozen, so the gradient of the head's outputs is found chunk by chunk in the
forward pass and kept; no [tokens, vocabulary] tensor outlives its chunk, and nothing is computed
twice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graft.train.compiling import compiled, compiles

CHUNK = 2048  # tokens
Goal = tuple[Tensor, Tensor | None]  # a chunk's features [m, E] and labels [m]


@dataclass(frozen=True, slots=True)
class OutputLayer:
    """The target's [V, E], its drafted rows [n, E], and their ids [n]."""

    whole: Tensor
    drafted: Tensor
    ids: Tensor

    @classmethod
    def of(cls, whole: Tensor, ids: Tensor) -> "OutputLayer":
        """Copies the drafted rows."""
        return cls(whole, whole[ids], ids)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What outputs [S, N, E] are held against.

    `features` [N, E] are the target's at the same places; `labels` [N] the text's next ids, or
    None to learn the target's distribution; `weights` [S, N] say what each output counts.
    """

    features: Tensor
    labels: Tensor | None
    weights: Tensor

    def goal(self, places: Tensor) -> Goal:
        """Of some of the N."""
        return self.features[places], None if self.labels is None else self.labels[places]


def cross_entropy(outputs: Tensor, lesson: Lesson, layer: OutputLayer) -> tuple[Tensor, Tensor]:
    """The weighted sum, and where [S, N] the head's likeliest token is the target's likeliest.

    Only drafted ids are asked for: what the target holds of the others lowers a token's weight.
    """
    return _Chunked.apply(outputs, lesson, layer)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,  # noqa: ANN401 (torch's)
        outputs: Tensor,
        lesson: Lesson,
        layer: OutputLayer,
    ) -> tuple[Tensor, Tensor]:
        gradient = torch.zeros_like(outputs)
        agreed = torch.zeros(outputs.shape[:2], dtype=torch.bool, device=outputs.device)
        total = outputs.new_zeros((), dtype=torch.float32)
        wanted = lesson.weights.any(0).nonzero()[:, 0]
        compute = _compiled() if compiles(outputs) else _chunk
        for places in wanted.split(CHUNK):
            count = len(places)
            if compute is not _chunk:  # compiled for one size
                places = F.pad(places, (0, CHUNK - count))  # noqa: PLW2901
            weights = lesson.weights[:, places]
            weights[:, count:] = 0
            loss, same, slope = compute(outputs[:, places], lesson.goal(places), weights, layer)
            total += loss
            agreed[:, places[:count]] = same[:, :count]
            gradient[:, places[:count]] = slope[:, :count].to(gradient.dtype)
        context.save_for_backward(gradient)
        context.mark_non_differentiable(agreed)
        return total, agreed

    @staticmethod
    def backward(context: Any, grown: Tensor, _: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        (gradient,) = context.saved_tensors
        return gradient * grown.to(gradient.dtype), None, None


def _chunk(
    outputs: Tensor, goal: Goal, weights: Tensor, layer: OutputLayer
) -> tuple[Tensor, Tensor, Tensor]:
    """Of [S, m, E]: the weighted sum, where the likeliest tokens are the same, the gradient."""
    wished, best = _wished(goal, layer)
    logits = (outputs.to(layer.drafted.dtype) @ layer.drafted.T).float()
    same = layer.ids[logits.argmax(-1)] == best
    logs = logits.log_softmax(-1)
    loss = -(weights * (wished * logs).sum(-1)).sum()
    slope = (logs.exp() * wished.sum(-1, keepdim=True) - wished) * weights[..., None]
    return loss, same, slope.to(layer.drafted.dtype) @ layer.drafted


def _wished(goal: Goal, layer: OutputLayer) -> tuple[Tensor, Tensor]:
    """What drafted ids should get [m, n], and the target's likeliest of all ids [m]."""
    features, labels = goal
    logits = (features.to(layer.whole.dtype) @ layer.whole.T).float()
    best = logits.argmax(-1)
    if labels is None:
        return (logits[:, layer.ids] - logits.logsumexp(-1, keepdim=True)).exp(), best
    return (labels[:, None] == layer.ids).float(), best


@cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Chunks spend their time on passes over logits; compiled, there are few."""
    return compiled(_chunk)
