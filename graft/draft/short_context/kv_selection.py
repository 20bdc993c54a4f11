"""Which KV cache rows a drafter attends to: attention sinks and the latest tokens (MagicDec), the
rows that the prompt's end attends to most (SnapKV), or chunks retrieved by it (TriForce).

A window refers to rows where they are. Rows selected per layer and head are gathered once, after
the prompt's prefill; all output rows are visible. With grouped queries, all queries of a group
select the rows of its key head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from graft.kernels.attention_weights import causal_weights, chunk_scores
from graft.models.arena import Extent, between
from graft.models.language_model import LanguageModel

Spans = tuple[tuple[int, int], ...]


class KVSelection(Protocol):
    """A rule that selects the rows of a sequence: a prompt and the output after it."""

    source: str  # the name of its draft tokens in statistics

    @property
    def gathered(self) -> int:
        """Rows selected per layer and head, 0 for none."""

    def leaves_out(self, prompt: int, total: int) -> bool:
        """Whether it selects fewer than all `total` tokens, `prompt` of them the prompt's."""

    def spans(self, prompt: int, total: int) -> Spans:
        """The tokens visible without gathering, as [first, last) pairs."""

    def choose(self, model: LanguageModel, base: Extent, prompt: Sequence[int]) -> Tensor:
        """[L, K, gathered] int64: the prompt tokens to gather, ascending."""


@dataclass(frozen=True, slots=True)
class Window:
    """The first tokens (attention sinks) and the latest (StreamingLLM, MagicDec)."""

    sinks: int
    latest: int
    source = "window"
    gathered = 0

    def leaves_out(self, prompt: int, total: int) -> bool:
        """See KVSelection."""
        return total > self.sinks + self.latest

    def spans(self, prompt: int, total: int) -> Spans:
        """See KVSelection."""
        return (0, self.sinks), (total - self.latest, total)

    def choose(self, model: LanguageModel, base: Extent, prompt: Sequence[int]) -> Tensor:
        """See KVSelection."""
        raise AssertionError("a window gathers nothing")


@dataclass(frozen=True, slots=True)
class SnapKV:
    """The last `observed` tokens of the prompt, and those that they attend to most, `budget` in
    all; attention is averaged over `kernel` neighbours first."""

    budget: int
    observed: int = 32
    kernel: int = 5
    source = "SnapKV"

    @property
    def gathered(self) -> int:
        """See KVSelection."""
        return self.budget - self.observed

    def leaves_out(self, prompt: int, total: int) -> bool:
        """See KVSelection."""
        return prompt > self.budget

    def spans(self, prompt: int, total: int) -> Spans:
        """See KVSelection."""
        return ((prompt - self.observed, total),)

    def choose(self, model: LanguageModel, base: Extent, prompt: Sequence[int]) -> Tensor:
        """See KVSelection."""
        return _by_head(model, base, prompt, self.observed, self._attended)

    def _attended(self, queries: Tensor, keys: Tensor) -> Tensor:
        weights = causal_weights(queries, keys).sum((0, 1))[: -self.observed]
        pooled = F.avg_pool1d(weights[None], self.kernel, 1, self.kernel // 2)[0]
        return pooled.topk(self.gathered).indices.sort().values


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of `size` tokens whose mean key scores highest for the query of the prompt's last
    token, `budget` tokens in all; always with the first chunk (TriForce)."""

    budget: int
    size: int = 8
    source = "retrieved KV"

    @property
    def gathered(self) -> int:
        """See KVSelection."""
        return self.budget // self.size * self.size

    def leaves_out(self, prompt: int, total: int) -> bool:
        """See KVSelection."""
        return prompt // self.size > self.budget // self.size

    def spans(self, prompt: int, total: int) -> Spans:
        """See KVSelection. Tokens after the last full chunk are visible too."""
        return ((prompt // self.size * self.size, total),)

    def choose(self, model: LanguageModel, base: Extent, prompt: Sequence[int]) -> Tensor:
        """See KVSelection."""
        return _by_head(model, base, prompt, 1, self._nearest)

    def _nearest(self, queries: Tensor, keys: Tensor) -> Tensor:
        scores = chunk_scores(queries, keys, self.size).mean((0, 1))
        scores[0] = torch.inf
        best = scores.topk(self.budget // self.size).indices.sort().values
        inside = torch.arange(self.size, device=best.device)
        return (self.size * best[:, None] + inside).flatten()


MAGICDEC = Window(sinks=16, latest=241)  # together the 257 of its README
MAGICDEC_SNAPKV = SnapKV(budget=257)
LONGSPEC_WINDOW = Window(sinks=32, latest=1024)  # from LongSpec's comparison with MagicDec
RAPID_WINDOW = Window(sinks=4, latest=4092)  # from RAPID's
TRIFORCE = Chunks(budget=4096)

# Queries [G, n, D] of a key head's group, keys [1, S, D] of the prompt -> tokens to keep
Choose = Callable[[Tensor, Tensor], Tensor]


def _by_head(
    model: LanguageModel, base: Extent, prompt: Sequence[int], queries: int, choose: Choose
) -> Tensor:
    """[L, K, n]: the tokens selected for every layer and key head by the prompt's last `queries`
    tokens. One head at a time: over a long context the weights of all heads take gigabytes."""
    segments = between(base.segments, 0, len(prompt))
    storage, chosen = model.arena.storage, []
    for layer, own in enumerate(_last_queries(model, base, prompt, queries)):
        keys = storage.keys_of(layer, segments)
        groups = zip(own.unflatten(0, (len(keys), -1)), keys, strict=True)
        chosen.append(torch.stack([choose(group, key[None]) for group, key in groups]))
    return torch.stack(chosen)


def _last_queries(model: LanguageModel, base: Extent, prompt: Sequence[int], count: int) -> Tensor:
    """[L, H, count, D] of the last tokens of a prompt, which are computed once more."""
    view = model.look(base, count)
    try:
        view.look((0, len(prompt) - count))
        return model.queries(view, prompt[-count:])
    finally:
        model.close(view)
