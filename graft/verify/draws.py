"""Sampled tokens for every node of a step at once, on the device of the logits.

The token at a node depends on the node's logits, its path and its noise key alone, so it is known
before the walk reaches the node. A device samples at all nodes with a few operations over whole
rows, and the walk then uses plain numbers: the host waits once per step, not once per node. The
tokens are those of `Sampler.draw`. Nodes that only the sampler can decide get `NOT_DRAWN`: those
under a caller's `process`, and those whose nucleus (top-p) exceeds the candidates examined.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeVar

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
MAX_ROWS = 64  # at once: noise takes 8 bytes for every token of the vocabulary, several times over


class Nodes(Protocol):
    """Where to sample: the nodes of a tree, or a part of one."""

    @property
    def depths(self) -> np.ndarray:
        """[n], the last one the greatest."""

    def __len__(self) -> int: ...

    def paths(self) -> list[list[int]]:
        """For every node the tokens drafted before it."""


@dataclass(frozen=True, slots=True)
class Positions:
    """`count` positions behind one path of `depth` draft tokens. Where the host does not know these
    tokens, the path is empty, and penalties count committed tokens only."""

    depth: int
    count: int = 1
    path: Sequence[int] = ()

    def __len__(self) -> int:
        return self.count

    @property
    def depths(self) -> np.ndarray:
        """[n]: how far ahead of the root they are."""
        return np.full(self.count, self.depth)

    def paths(self) -> list[list[int]]:
        """See Nodes."""
        return [list(self.path)] * self.count


SamplerNodes = tuple[Sampler | None, Nodes]  # None: no token is needed there
Sampled = tuple[Sampler, Nodes]
Entry = TypeVar("Entry", bound=SamplerNodes)


class Draws:
    """The sampled tokens of a step, copied to the host in the background."""

    def __init__(self, samples: Sequence[SamplerNodes], logits: Tensor) -> None:
        self._counts = [len(nodes) for _, nodes in samples]
        self.on_device = drawn = draw_all(samples, logits)  # [M] int64
        self._tokens = drawn.to("cpu", non_blocking=True)  # pinned, if it comes from a device
        self._arrived = torch.cuda.Event() if drawn.is_cuda else None
        if self._arrived:
            self._arrived.record(torch.cuda.current_stream(drawn.device))

    def wait(self) -> list[list[int]]:
        """The sampled tokens of each entry's nodes."""
        if self._arrived:
            self._arrived.synchronize()
        tokens, first, parts = self._tokens.tolist(), 0, []
        for count in self._counts:
            parts.append(tokens[first : first + count])
            first += count
        return parts


def draw_all(samples: Sequence[SamplerNodes], logits: Tensor) -> Tensor:
    """Tokens [M] int64 for all nodes, in the order of `logits` [M, V]."""
    return _concatenated([_draw(*part) for part in _parts(samples, logits, _draw_key)])


def preferences(
    samples: Sequence[SamplerNodes], logits: Tensor, tokens: Tensor | None = None
) -> Tensor:
    """[M, V] float32 log-weights, noise included, whose argmax is the sampled token.

    They show how close the runner-up is. Nodes that only the sampler can decide get those of the
    raw logits. The logits may be those of some `tokens` only, if no sampler adjusts them.
    """
    parts = _parts(samples, logits, _draw_key)
    return _concatenated([_preferred(*part, tokens) for part in parts]).log_softmax(-1)


def distributions(samples: Sequence[Sampled], logits: Tensor) -> tuple[Tensor, Tensor]:
    """[M, V] float32 sampling distributions without `process`, at temperature 1 if greedy.

    The second tensor [M] says where they are exact: a nucleus (top-p) that exceeds the candidates
    examined is cut there.
    """
    parts = [_distribution(*part) for part in _parts(samples, logits, _distribution_key)]
    probs, exact = zip(*parts, strict=True)
    return _concatenated(probs), _concatenated(exact)


def sampled(samples: Sequence[Sampled], logits: Tensor) -> tuple[Tensor, Tensor]:
    """Draft tokens [M], sampled with noise independent of the target's, and the distributions
    [M, V] they come from. A greedy sampler gets the most likely token."""
    probs, _ = distributions(samples, logits)
    keys = [as_signed(sampler.key(int(depth), PROPOSE)) for sampler, tree in samples
            for depth in tree.depths]  # fmt: skip
    random = [not sampler.params.greedy for sampler, tree in samples for _ in range(len(tree))]
    numbers = upload(torch.tensor([keys, random], dtype=torch.int64), logits.device)
    tokens = torch.arange(logits.shape[1], device=logits.device)
    noise = gumbel(numbers[0][:, None], tokens) * numbers[1][:, None]
    return (probs.double().log() + noise).argmax(-1), probs


def _parts(
    samples: Sequence[Entry], logits: Tensor, key: Callable[[Entry], tuple]
) -> Iterator[tuple[list[Entry], Tensor]]:
    """Adjacent entries that can be computed together, and their logits."""
    first = 0
    for _, members in groupby(samples, key=key):
        group = list(members)
        count = sum(len(tree) for _, tree in group)
        yield group, logits[first : first + count]
        first += count


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _draw_key(sample: SamplerNodes) -> tuple[bool, bool, int]:
    """Entries with the same key are sampled together: (not at all, greedily, on their own)."""
    sampler, _ = sample
    if sampler is None or not sampler.batchable:
        return True, False, 0
    return False, sampler.params.greedy, id(sampler) if sampler.adjusts else 0


def _distribution_key(sample: Sampled) -> tuple[bool, int]:
    """Distributions of entries with the same key are computed together: (greedy, on their own)."""
    sampler, _ = sample
    return sampler.params.greedy, id(sampler) if sampler.adjusts else 0


def _distribution(group: list[Sampled], logits: Tensor) -> tuple[Tensor, Tensor]:
    logits, exact = _adjusted(group, logits), None
    if group[0][0].params.greedy:
        scaled = logits.float()
    else:
        numbers = upload(torch.from_numpy(_numbers(group)), logits.device)
        scaled, exact = _filtered(logits, numbers, _filters(group, logits))
    if exact is None:
        exact = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    return scaled.softmax(-1), exact


def _batchable(group: list[SamplerNodes]) -> list[Sampled]:
    """All entries of a group, or none if only the sampler itself can decide them."""
    return [(sampler, nodes) for sampler, nodes in group if sampler and sampler.batchable]


def _draw(entries: list[SamplerNodes], logits: Tensor) -> Tensor:
    group = _batchable(entries)
    if not group:
        return torch.full((len(logits),), NOT_DRAWN, dtype=torch.int64, device=logits.device)
    logits = _adjusted(group, logits)
    if group[0][0].params.greedy:
        return greedy_rows(logits)
    if draws_fast(logits) and not _filters(group, logits).any:
        keys, _, temperatures, *_ = upload(torch.from_numpy(_numbers(group)), logits.device)
        return sampled_rows(logits, keys, temperatures.view(torch.float64))
    return _concatenated(
        [
            drawn if exact is None else torch.where(exact, drawn, NOT_DRAWN)
            for noisy, exact in _noisy(group, logits)
            for drawn in [noisy.argmax(-1)]
        ]
    )


def _preferred(entries: list[SamplerNodes], logits: Tensor, tokens: Tensor | None) -> Tensor:
    group = _batchable(entries)
    if not group:
        return logits.float()
    logits = _adjusted(group, logits)
    if group[0][0].params.greedy:
        return logits.float()
    return _concatenated([noisy.float() for noisy, _ in _noisy(group, logits, tokens)])


def _adjusted(group: list[Sampled], logits: Tensor) -> Tensor:
    sampler, _ = group[0]
    if not sampler.adjusts:
        return logits
    return sampler.adjusted(logits, [path for _, tree in group for path in tree.paths()])


def _noisy(
    group: list[Sampled], logits: Tensor, tokens: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Scores with noise [n, V], at most MAX_ROWS at a time, and where they are exact [n]."""
    if tokens is None:
        tokens = torch.arange(logits.shape[1], device=logits.device)
    filters = _filters(group, logits)
    numbers = upload(torch.from_numpy(_numbers(group)), logits.device)
    for part in zip(logits.split(MAX_ROWS), numbers.split(MAX_ROWS, 1), strict=True):
        yield _with_noise(*part, filters, tokens)


def _numbers(group: list[Sampled]) -> np.ndarray:
    """[5, M] int64: each node's noise key and top-k; the bits of its temperature, top-p and the
    logarithm of its min-p (one upload for all)."""
    whole, fractions = [], []
    for sampler, tree in group:
        params, depths = sampler.params, tree.depths.tolist()
        keys = [as_signed(sampler.key(depth, DRAW)) for depth in range(depths[-1] + 1)]
        whole += [(keys[depth], params.top_k) for depth in depths]
        min_p = math.log(params.min_p) if params.min_p else -math.inf
        fractions += [(params.temperature, params.top_p, min_p)] * len(depths)
    return np.concatenate([np.array(whole).T, np.array(fractions).T.copy().view(np.int64)])


def _filters(group: list[Sampled], logits: Tensor) -> "_Filters":
    return _Filters([sampler.params for sampler, _ in group], logits.shape[1])


class _Filters:
    """Which filters any of the rows uses, and how many top candidates they examine."""

    def __init__(self, params: list[SamplingParams], vocabulary: int) -> None:
        self.top_k = max(p.top_k if p.top_k < vocabulary else 0 for p in params)
        self.top_p = any(p.top_p < 1 for p in params)
        self.min_p = any(p.min_p > 0 for p in params)
        self.candidates = min(max(self.top_k, NEAR_TOP * self.top_p), vocabulary)
        self.any = bool(self.top_k or self.top_p or self.min_p)


def _with_noise(
    scores: Tensor, numbers: Tensor, filters: _Filters, tokens: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Scores [n, V] after temperature, filters and noise; where they are exact [n], None for
    everywhere."""
    scaled, exact = _filtered(scores, numbers, filters)
    return scaled.double() + gumbel(numbers[0][:, None], tokens), exact


def _filtered(scores: Tensor, numbers: Tensor, filters: _Filters) -> tuple[Tensor, Tensor | None]:
    """The same without noise."""
    top_k, fractions = numbers[1][:, None], numbers[2:]
    temperature, top_p, min_p = fractions.contiguous().view(torch.float64)[..., None]
    scaled = scores.float() / temperature.float()
    best = scaled.topk(filters.candidates).values if filters.candidates else scaled
    exact = None
    if filters.top_k:
        border = best.gather(1, (top_k - 1).clamp(0, best.shape[1] - 1))
        border.masked_fill_((top_k == 0) | (top_k >= scaled.shape[1]), -math.inf)
        scaled, best = _mask_below(border, scaled), _mask_below(border, best)
    if filters.top_p:
        border, reached = nucleus_borders(scaled, best, top_p)
        border.masked_fill_(top_p == 1, -math.inf)
        exact = reached | (top_p == 1) if best.shape[1] < scaled.shape[1] else None
        scaled = _mask_below(border, scaled)
    if filters.min_p:
        scaled = _mask_below(scaled.amax(-1, keepdim=True) + min_p.float(), scaled)
    return scaled, None if exact is None else exact[:, 0]


def _mask_below(border: Tensor, scaled: Tensor) -> Tensor:
    return scaled.masked_fill(scaled < border, -math.inf)
