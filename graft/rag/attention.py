"""Attention weights of a text, for DRAGIN.

Fused attention kernels do not return these weights. So they come from a separate forward over a
short text: the queries of the last layer with the keys that this forward has written there.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.kernels.attention_weights import causal_weights


class Attention(Protocol):
    """Computes attention weights."""

    def attention_of(self, tokens: Sequence[int]) -> np.ndarray:
        """[H, n, n] of the last layer: row i has the weights of tokens 0 to i, with sum 1."""


class ModelAttention:
    """Attention weights of an engine's model, computed between two steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._check(1)

    def attention_of(self, tokens: Sequence[int]) -> np.ndarray:
        """See Attention."""
        self._check(len(tokens))
        return self._engine.exclusive(lambda: self._weights(list(tokens))).cpu().numpy()

    def _check(self, tokens: int) -> None:
        """Refuse logit caps, sinks and windows in the last layer: the weights would be wrong."""
        if not self._engine.model.forward.weighs_plainly(-1, tokens):
            raise InputError(
                f"DRAGIN needs attention weights over {tokens} tokens, which "
                f"{self._engine.model_name} does not provide; choose --policy fl, fs or flare"
            )

    def _weights(self, tokens: list[int]) -> Tensor:
        model = self._engine.model
        extent = model.prefixes.reserve(len(tokens))
        try:
            queries = model.queries(extent, tokens)
            rows = [(extent.start, len(tokens))]
            keys = model.arena.storage.keys_of(len(queries) - 1, rows)
            return causal_weights(queries[-1], keys)
        finally:
            model.close(extent)
