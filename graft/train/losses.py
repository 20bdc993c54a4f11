"""Chunked cross-entropy against the target, without the logits of all tokens at once.

Gradients of the head's outputs, and of its output layer if it has one, are computed chunk by chunk
in the forward pass; no [tokens, vocabulary] tensor outlives its chunk, and nothing is computed
twice.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graft.models.heads.files import Head
from graft.train.compiling import compiled, compiles

CHUNK = 2048  # tokens
Chunk = tuple[Tensor, Tensor | None, bool]  # features [m, E] and labels [m]; see Supervision


@dataclass(frozen=True, slots=True)
class OutputLayer:
    """The target's [V, E], the head's [n, E], and its ids [n]."""

    whole: Tensor
    drafted: Tensor
    ids: Tensor

    @classmethod
    def of(cls, whole: Tensor, head: Head) -> "OutputLayer":
        """A head without an output layer has a copy of the target's drafted rows."""
        own = head.lm_head
        return cls(whole, whole[head.d2t] if own is None else own.weight, head.d2t)


@dataclass(frozen=True, slots=True)
class Supervision:
    """What the outputs [S, N, E] should predict.

    `features` [N, E] are the inputs of the target's output layer; `labels` [N] are the text's next
    ids, or None for the target's distribution; `weights` [S, N] weight each output. `renormalised`
    is EAGLE-3's rule: the distribution over the drafted ids alone, where its argmax is drafted.
    """

    features: Tensor
    labels: Tensor | None
    weights: Tensor
    renormalised: bool = False

    def chunk(self, places: Tensor) -> Chunk:
        """What is expected at some of the N places."""
        labels = None if self.labels is None else self.labels[places]
        return self.features[places], labels, self.renormalised


def cross_entropy(
    outputs: Tensor, supervision: Supervision, layer: OutputLayer
) -> tuple[Tensor, Tensor]:
    """The weighted sum, and where [S, N] the argmax of head and target agree.

    Only the ids of the draft vocabulary count: the target's probability of other ids lowers the
    weight of a token, unless it is renormalised.
    """
    return _Chunked.apply(outputs, layer.drafted, supervision, layer)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,  # noqa: ANN401 (torch's)
        outputs: Tensor,
        drafted: Tensor,
        supervision: Supervision,
        layer: OutputLayer,
    ) -> tuple[Tensor, Tensor]:
        layer = replace(layer, drafted=drafted.detach().to(layer.whole.dtype))
        own = torch.zeros_like(drafted) if drafted.requires_grad else None
        gradient = torch.zeros_like(outputs)
        agreed = torch.zeros(outputs.shape[:2], dtype=torch.bool, device=outputs.device)
        total = outputs.new_zeros((), dtype=torch.float32)
        used = supervision.weights.any(0).nonzero()[:, 0]
        compute = _compiled() if compiles(outputs) else _chunk
        for places in used.split(CHUNK):
            count = len(places)
            if compute is not _chunk:  # compiled for a static shape
                places = F.pad(places, (0, CHUNK - count))
            weights = supervision.weights[:, places]
            weights[:, count:] = 0
            some = outputs[:, places].to(layer.drafted.dtype)
            loss, same, slope = compute(some, supervision.chunk(places), weights, layer)
            total += loss
            agreed[:, places[:count]] = same[:, :count]
            back = slope @ layer.drafted
            gradient[:, places[:count]] = back[:, :count].to(gradient.dtype)
            if own is not None:
                own += slope.flatten(0, 1).T @ some.flatten(0, 1)
        context.save_for_backward(gradient, own)
        context.mark_non_differentiable(agreed)
        return total, agreed

    @staticmethod
    def backward(context: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        gradient, own = context.saved_tensors
        own = None if own is None else own * upstream.to(own.dtype)
        return gradient * upstream.to(gradient.dtype), own, None, None


def _chunk(
    outputs: Tensor, chunk: Chunk, weights: Tensor, layer: OutputLayer
) -> tuple[Tensor, Tensor, Tensor]:
    """For [S, m, E]: the weighted sum, where the argmax agrees, and the logits' gradient."""
    expected, best = _expected(chunk, layer)
    logits = (outputs @ layer.drafted.T).float()
    same = layer.ids[logits.argmax(-1)] == best
    logs = logits.log_softmax(-1)
    loss = -(weights * (expected * logs).sum(-1)).sum()
    slope = (logs.exp() * expected.sum(-1, keepdim=True) - expected) * weights[..., None]
    return loss, same, slope.to(layer.drafted.dtype)


def _expected(chunk: Chunk, layer: OutputLayer) -> tuple[Tensor, Tensor]:
    """Expected probabilities of the draft vocabulary [m, n], and the target's argmax [m]."""
    features, labels, renormalised = chunk
    logits = (features.to(layer.whole.dtype) @ layer.whole.T).float()
    best = logits.argmax(-1)
    if labels is not None:
        return (labels[:, None] == layer.ids).float(), best
    drafted = logits[:, layer.ids]
    if renormalised:
        known = (best[:, None] == layer.ids).any(-1, keepdim=True)
        return drafted.softmax(-1) * known, best
    return (drafted - logits.logsumexp(-1, keepdim=True)).exp(), best


@cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Compiling fuses the passes over the logits."""
    return compiled(_chunk)
