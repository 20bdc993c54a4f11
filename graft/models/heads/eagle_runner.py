"""Runs a head of EAGLE's form. Its inputs are pairs: the target's features at a position, and the
next token.

Committed rows come from the target's own features, one for each pair. A draft token is paired with
the head's output for its parent, in place of the features that the target would have.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from graft.models.arena import Extent
from graft.models.eagle_head import EagleHead
from graft.models.heads.layers import Rotary, SelfAttention
from graft.models.heads.panels import PanelLayer, PanelRound
from graft.models.heads.runner import TREE_ROWS, HeadRunner, Known, Memory, Round, Text
from graft.models.language_model import LanguageModel


class EagleRunner(HeadRunner):
    """Has one row for every token, as a layer of the target has."""

    def __init__(self, head: EagleHead, model: LanguageModel, *, packed: bool = False) -> None:
        super().__init__(head, model, packed=packed)
        model.keep_features(head.config.feature_layers)
        is_decoder = head.config.kind != "eagle3"  # a decoder layer's inputs are E wide
        fits = packed and is_decoder and head.config.plain_attention
        self._layer = PanelLayer(head.layer, head.config) if fits else None

    def round(self, memories: Sequence[Memory], extents: Sequence[Extent]) -> Round | PanelRound:
        """See HeadRunner. On the CPU `run_layers` computes a decoder's layer: EAGLE-2's, MTP."""
        if self._layer:
            return PanelRound(self, self._layer, memories)
        return super().round(memories, extents)

    @property
    def attention(self) -> SelfAttention:
        """See HeadRunner."""
        return self.head.layer.self_attn

    @property
    def block(self) -> nn.Module:
        """See HeadRunner."""
        return self.head.layer

    def project(self, features: Tensor) -> Tensor:
        """See HeadRunner."""
        return self.head.project(features.to(self.dtype))

    def inputs(self, tokens: Tensor, features: Tensor | None) -> Tensor:
        """See HeadRunner."""
        return self.head.fuse(self.embed(tokens), features)

    def normed(self, inputs: Tensor) -> Tensor:
        """See HeadRunner."""
        return self.head.layer.normed(inputs)

    def rows(self, text: Text, positions: np.ndarray) -> np.ndarray:
        """See HeadRunner."""
        memory, extent = text.memory, text.memory.extent
        extent.length = memory.end - memory.first
        self.prefixes.ensure(extent, extent.length + len(positions) + TREE_ROWS)
        extent.length += len(positions)
        return extent.start + positions - memory.first

    def seen(self, memory: Memory, depth: int) -> list[tuple[int, int]]:  # noqa: ARG002
        """See HeadRunner."""
        return memory.extent.segments

    def finish(
        self,
        inputs: Tensor,
        attended: Tensor,
        rotary: Rotary,  # noqa: ARG002
        known: Known,  # noqa: ARG002
    ) -> Tensor:
        """See HeadRunner."""
        return self.head.layer.after(inputs, attended)
