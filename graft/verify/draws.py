"""Draws for every node of a step at once, made where the logits are.

What a sampler draws at a node follows from the node's logits, its path and its noise key alone, so
it is known before the walk has got there. A device draws at all nodes with a few operations over
whole rows, and the walk then goes over plain numbers: one wait for the device, not one per node.
The tokens are those that `Sampler.draw` would draw; at nodes where only it can tell, the result is
`NOT_DRAWN`: under a caller's `process`, and where top-p reaches beyond the tokens looked at.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from graft.kernels.fast_draws import draws_fast, greedy_rows, sampled_rows
from graft.sampling import (
    DRAW,
    NEAR_TOP,
    PROPOSE,
    Sampler,
    SamplingParams,
    as_signed,
    gumbel,
    nucleus_borders,
    upload,
)

NOT_DRAWN = -1
ROWS_AT_ONCE = 64  # noise takes 8 bytes for every token of the vocabulary, several times over


class Places(Protocol):
    """Where to draw: the nodes of a tree, or a part of one."""

    depths: np.ndarray  # [n], the last one the greatest

    def __len__(self) -> int: ...

    def paths(self) -> list[list[int]]:
        """For every place the tokens drafted before it."""


Asked = tuple[Sampler | None, Places]  # None: nobody wants to know


class Draws:
    """The tokens of a step on their way to the host."""

    def __init__(self, asked: Sequence[Asked], logits: Tensor) -> None:
        self._counts = [len(tree) for _, tree in asked]
        drawn = draw_all(asked, logits)
        self._tokens = drawn.to("cpu", non_blocking=True)  # pinned, if it comes from a device
        self._arrived = torch.cuda.Event() if drawn.is_cuda else None
        if self._arrived:
            self._arrived.record(torch.cuda.current_stream(drawn.device))

    def wait(self) -> list[list[int]]:
        """For each tree the tokens drawn at its nodes."""
        if self._arrived:
            self._arrived.synchronize()
        tokens, first, parts = self._tokens.tolist(), 0, []
        for count in self._counts:
            parts.append(tokens[first : first + count])
            first += count
        return parts


def draw_all(asked: Sequence[Asked], logits: Tensor) -> Tensor:
    """Tokens [M] int64 for the nodes of all trees, side by side as in `logits` [M, V]."""
    return _joined([_draw(*part) for part in _parts(asked, logits)])


def preferences(asked: Sequence[Asked], logits: Tensor, tokens: Tensor | None = None) -> Tensor:
    """[M, V] float32: what the draws are the argmax of, noise included, as logarithms of weights
    that sum to 1. They say how close a call each draw is.

    Where only the sampler itself can tell, they are of the logits as they came. The logits may be
    those of some `tokens` only, if no sampler adjusts them."""
    found = _joined([_preferred(*part, tokens) for part in _parts(asked, logits)])
    return found.log_softmax(-1)


def distributions(asked: Sequence[Asked], logits: Tensor) -> tuple[Tensor, Tensor]:
    """[M, V] float32: what the draws are made from, of a greedy sampler that of temperature 1, as
    if there were no `process`; and where it is exact [M]: top-p may reach beyond the tokens looked
    at, and is then cut there."""
    parts = [_distribution(*part) for part in _parts(asked, logits, _sort)]
    probs, certain = zip(*parts, strict=True)
    return _joined(probs), _joined(certain)


def sampled(asked: Sequence[Asked], logits: Tensor) -> tuple[Tensor, Tensor]:
    """A drafter's own draws [M], with noise that the target's never see, and the distributions
    [M, V] they were drawn from. What a greedy sampler gets is the likeliest token."""
    probs, _ = distributions(asked, logits)
    keys = [as_signed(sampler.key(int(depth), PROPOSE)) for sampler, tree in asked
            for depth in tree.depths]  # fmt: skip
    random = [not sampler.params.greedy for sampler, tree in asked for _ in range(len(tree))]
    numbers = upload(torch.tensor([keys, random], dtype=torch.int64), logits.device)
    tokens = torch.arange(logits.shape[1], device=logits.device)
    noise = gumbel(numbers[0][:, None], tokens) * numbers[1][:, None]
    return (probs.double().log() + noise).argmax(-1), probs


def _parts(
    asked: Sequence[Asked],
    logits: Tensor,
    kind: Callable[[Asked], tuple] | None = None,
) -> Iterator[tuple[list[Asked], Tensor]]:
    """Neighbours of one kind, and their logits."""
    first = 0
    for _, group in groupby(asked, key=kind or _kind):
        alike = list(group)
        count = sum(len(tree) for _, tree in alike)
        yield alike, logits[first : first + count]
        first += count


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _kind(asked: Asked) -> tuple[bool, bool, int]:
    """Neighbours of one kind are drawn together: (not at all, greedily, on their own)."""
    sampler, _ = asked
    if sampler is None or not sampler.foreseeable:
        return True, False, 0
    return False, sampler.params.greedy, id(sampler) if sampler.adjusts else 0


def _sort(asked: Asked) -> tuple[bool, int]:
    """Neighbours of one sort have their distributions made together: (greedily, on their own)."""
    sampler, _ = asked
    return sampler.params.greedy, id(sampler) if sampler.adjusts else 0


def _distribution(alike: list[Asked], logits: Tensor) -> tuple[Tensor, Tensor]:
    logits, certain = _adjusted(alike, logits), None
    if alike[0][0].params.greedy:
        scaled = logits.float()
    else:
        numbers = upload(torch.from_numpy(_numbers(alike)), logits.device)
        scaled, certain = _filtered(logits, numbers, _filters(alike, logits))
    if certain is None:
        certain = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    return scaled.softmax(-1), certain


def _draw(alike: list[Asked], logits: Tensor) -> Tensor:
    sampler, _ = alike[0]
    if sampler is None or not sampler.foreseeable:
        return torch.full((len(logits),), NOT_DRAWN, dtype=torch.int64, device=logits.device)
    logits = _adjusted(alike, logits)
    if sampler.params.greedy:
        return greedy_rows(logits)
    if draws_fast(logits) and not _filters(alike, logits).any:
        keys, _, temperatures, *_ = upload(torch.from_numpy(_numbers(alike)), logits.device)
        return sampled_rows(logits, keys, temperatures.view(torch.float64))
    return _joined(
        [
            drawn if certain is None else torch.where(certain, drawn, NOT_DRAWN)
            for noisy, certain in _noisy(alike, logits)
            for drawn in [noisy.argmax(-1)]
        ]
    )


def _preferred(alike: list[Asked], logits: Tensor, tokens: Tensor | None) -> Tensor:
    sampler, _ = alike[0]
    if sampler is None or not sampler.foreseeable:
        return logits.float()
    logits = _adjusted(alike, logits)
    if sampler.params.greedy:
        return logits.float()
    return _joined([noisy.float() for noisy, _ in _noisy(alike, logits, tokens)])


def _adjusted(alike: list[Asked], logits: Tensor) -> Tensor:
    sampler, _ = alike[0]
    if not sampler.adjusts:
        return logits
    return sampler.adjusted(logits, [path for _, tree in alike for path in tree.paths()])


def _noisy(
    alike: list[Asked], logits: Tensor, tokens: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Scores with noise [n, V], some rows at a time, and where they are certain [n]."""
    if tokens is None:
        tokens = torch.arange(logits.shape[1], device=logits.device)
    filters = _filters(alike, logits)
    numbers = upload(torch.from_numpy(_numbers(alike)), logits.device)
    for part in zip(logits.split(ROWS_AT_ONCE), numbers.split(ROWS_AT_ONCE, 1), strict=True):
        yield _with_noise(*part, filters, tokens)


def _numbers(alike: list[Asked]) -> np.ndarray:
    """[5, M] int64: each node's noise key and top-k; the bits of its temperature, top-p and the
    logarithm of its min-p."""
    whole, fractions = [], []
    for sampler, tree in alike:
        params, depths = sampler.params, tree.depths.tolist()
        keys = [as_signed(sampler.key(depth, DRAW)) for depth in range(depths[-1] + 1)]
        whole += [(keys[depth], params.top_k) for depth in depths]
        min_p = math.log(params.min_p) if params.min_p else -math.inf
        fractions += [(params.temperature, params.top_p, min_p)] * len(depths)
    return np.concatenate([np.array(whole).T, np.array(fractions).T.copy().view(np.int64)])


def _filters(alike: list[Asked], logits: Tensor) -> "_Filters":
    return _Filters([sampler.params for sampler, _ in alike], logits.shape[1])


class _Filters:
    """Which of the filters some row uses, and how many of the best entries they look at."""

    def __init__(self, params: list[SamplingParams], vocabulary: int) -> None:
        self.top_k = max(p.top_k if p.top_k < vocabulary else 0 for p in params)
        self.top_p = any(p.top_p < 1 for p in params)
        self.min_p = any(p.min_p > 0 for p in params)
        self.looks_at = min(max(self.top_k, NEAR_TOP * self.top_p), vocabulary)
        self.any = bool(self.top_k or self.top_p or self.min_p)


def _with_noise(
    scores: Tensor, numbers: Tensor, filters: _Filters, tokens: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Scores [n, V] after temperature, filters and noise; where they are certain [n], None for
    everywhere."""
    scaled, certain = _filtered(scores, numbers, filters)
    return scaled.double() + gumbel(numbers[0][:, None], tokens), certain


def _filtered(scores: Tensor, numbers: Tensor, filters: _Filters) -> tuple[Tensor, Tensor | None]:
    """The same before the noise."""
    top_k, fractions = numbers[1][:, None], numbers[2:]
    temperature, top_p, min_p = fractions.contiguous().view(torch.float64)[..., None]
    scaled = scores.float() / temperature.float()
    best = scaled.topk(filters.looks_at).values if filters.looks_at else scaled
    certain = None
    if filters.top_k:
        border = best.gather(1, (top_k - 1).clamp(0, best.shape[1] - 1))
        border.masked_fill_((top_k == 0) | (top_k >= scaled.shape[1]), -math.inf)
        scaled, best = _at_least(border, scaled), _at_least(border, best)
    if filters.top_p:
        border, reached = nucleus_borders(scaled, best, top_p)
        border.masked_fill_(top_p == 1, -math.inf)
        certain = reached | (top_p == 1) if best.shape[1] < scaled.shape[1] else None
        scaled = _at_least(border, scaled)
    if filters.min_p:
        scaled = _at_least(scaled.amax(-1, keepdim=True) + min_p.float(), scaled)
    return scaled, None if certain is None else certain[:, 0]


def _at_least(border: Tensor, scaled: Tensor) -> Tensor:
    return scaled.masked_fill(scaled < border, -math.inf)
