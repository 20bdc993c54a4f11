"""How much each token of a text looks at the earlier ones, for DRAGIN.

Decoding never forms these weights: fused kernels add them up as they go. So they come from a call
of their own, over a short text, and only the last layer's count. `Attention` is all a policy knows;
`NetworkAttention` asks a transformers network in eager mode.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from graft.errors import InputError
from graft.models.load import LoadedModel


class Attention(Protocol):
    """Whoever can say it."""

    def attention_of(self, tokens: Sequence[int]) -> np.ndarray:
        """[H, n, n] of the last layer: row i is how token i weighs tokens 0 to i, its sum 1."""


class NetworkAttention:
    """Through a transformers network."""

    def __init__(self, network: Any) -> None:  # noqa: ANN401 (a PreTrainedModel)
        self._network = network

    @torch.inference_mode()
    def attention_of(self, tokens: Sequence[int]) -> np.ndarray:
        """See Attention."""
        ids = torch.tensor([list(tokens)], device=self._network.device)
        told = self._network(ids, output_attentions=True, use_cache=False, logits_to_keep=1)
        if not told.attentions or told.attentions[-1] is None:
            raise InputError("this model does not tell its attention; choose another --policy")
        return told.attentions[-1][0].float().cpu().numpy()


class LoadedAttention:
    """Through a second copy of a loaded model's weights, read from its checkpoint when first asked.

    Graft's own forwards keep their weights packed for speed and tell no attention.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        if not loaded.checkpoint.folder.is_dir():
            raise InputError(
                f"DRAGIN needs attention weights, and {loaded.checkpoint.name} has no checkpoint "
                "folder to read a network from; choose --policy fl, fs or flare"
            )
        self._loaded = loaded
        self._inner: NetworkAttention | None = None

    def attention_of(self, tokens: Sequence[int]) -> np.ndarray:
        """See Attention."""
        if self._inner is None:
            self._inner = NetworkAttention(self._read())
        return self._inner.attention_of(tokens)

    def _read(self) -> Any:  # noqa: ANN401 (a PreTrainedModel)
        import transformers

        on_cpu = self._loaded.device == "cpu"  # where 16-bit products can take minutes
        network = transformers.AutoModelForCausalLM.from_pretrained(
            self._loaded.checkpoint.folder,
            dtype=torch.float32 if on_cpu else torch.bfloat16,
            attn_implementation="eager",
            use_safetensors=True,
        )
        return network.eval().to(self._loaded.device)
