"""Cross-entropy against the target without logits of all tokens at once.

Output layers are frozen, so the gradient of the head's outputs is found chunk by chunk in the
forward pass and kept; no [tokens, vocabulary] tensor outlives its chunk, and nothing is computed
twice.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK = 2048  # tokens


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
        for places in wanted.split(CHUNK):
            goal, best = _goal(lesson, layer, places)
            weights = lesson.weights[:, places, None]
            logits = (outputs[:, places].to(layer.drafted.dtype) @ layer.drafted.T).float()
            agreed[:, places] = layer.ids[logits.argmax(-1)] == best
            logs = logits.log_softmax(-1)
            total -= (weights * (goal * logs).sum(-1, keepdim=True)).sum()
            logs.exp_().mul_(goal.sum(-1, keepdim=True)).sub_(goal).mul_(weights)
            gradient[:, places] = (logs.to(layer.drafted.dtype) @ layer.drafted).to(gradient.dtype)
        context.save_for_backward(gradient)
        context.mark_non_differentiable(agreed)
        return total, agreed

    @staticmethod
    def backward(context: Any, grown: Tensor, _: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        (gradient,) = context.saved_tensors
        return gradient * grown.to(gradient.dtype), None, None


def _goal(lesson: Lesson, layer: OutputLayer, places: Tensor) -> tuple[Tensor, Tensor]:
    """What drafted ids should get [m, n], and the target's likeliest of all ids [m]."""
    logits = (lesson.features[places].to(layer.whole.dtype) @ layer.whole.T).float()
    best = logits.argmax(-1)
    if lesson.labels is None:
        return (logits[:, layer.ids] - logits.logsumexp(-1, keepdim=True)).exp(), best
    return (lesson.labels[places, None] == layer.ids).float(), best
