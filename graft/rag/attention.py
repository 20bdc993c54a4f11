"""How much each token of a text looks at the earlier ones, for DRAGIN.

Decoding never forms these weights: fused kernels add them up as they go. So they come from a step
of their own, over a short text, through the model's door to its attention: what the tokens ask with
in the last layer, against the keys that this step has written there. `Attention` is all a policy
knows.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.kernels.attention_weights import causal_weights


class Attention(Protocol):
    """Whoever can say it."""

    def attention_of(self, tokens: Sequence[int]) -> np.ndarray:
        """[H, n, n] of the last layer: row i is how token i weighs tokens 0 to i, its sum 1."""


class ModelAttention:
    """Of an engine's own model, between two of its steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._check(1)

    def attention_of(self, tokens: Sequence[int]) -> np.ndarray:
        """See Attention."""
        self._check(len(tokens))
        return self._engine.exclusive(lambda: self._weights(list(tokens))).cpu().numpy()

    def _check(self, tokens: int) -> None:
        """Caps, sinks and windows of the last layer would have to be counted in."""
        if not self._engine.model.forward.weighs_plainly(-1, tokens):
            raise InputError(
                f"DRAGIN needs attention weights over {tokens} tokens, which "
                f"{self._engine.model_name} does not tell; choose --policy fl, fs or flare"
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
