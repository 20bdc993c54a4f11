"""The frozen target: features, keys and values of a batch to train a head on."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.utils import logging

from graft.errors import CheckpointError, UnsupportedModelError
from graft.models.checkpoints.pretrained import Checkpoint, locate, widened
from graft.models.load import find_device
from graft.train.batches import Batch
from graft.train.compiling import compile_in_place, compiles

TOLERANCE = 1e-2  # of logits in fp32, relative to the largest


@dataclass(frozen=True, slots=True)
class TargetOutputs:
    """Features (after the final norm) [B, T, E]; keys and values [B, n * K, T, D] of the last n
    layers, the last one's first."""

    features: Tensor
    kv: tuple[Tensor, Tensor]


class Target:
    """A frozen transformers model; `layers` is the number of last layers whose KV is used."""

    def __init__(
        self,
        network: Any,  # noqa: ANN401
        tokenizer: Any,  # noqa: ANN401
        checkpoint: Checkpoint,
        layers: int = 1,
    ) -> None:
        self.network = network.eval().requires_grad_(False)  # noqa: FBT003 (torch's signature)
        self.tokenizer, self.checkpoint = tokenizer, checkpoint
        self.embedding: Tensor = network.get_input_embeddings().weight
        self.output: Tensor = network.get_output_embeddings().weight
        _check_output(self)
        others, last = network.base_model.layers[:-layers], network.base_model.layers[-layers:]
        self._last = [_KeepKV(layer.self_attn) for layer in reversed(last)]
        if compiles(self.output):
            compile_in_place(*others)

    @property
    def config(self) -> PretrainedConfig:
        """The model's config."""
        return self.network.config

    @property
    def device(self) -> torch.device:
        """The device of the model and of batches."""
        return self.output.device

    @torch.no_grad()
    def forward(self, batch: Batch, positions: Tensor) -> TargetOutputs:
        """One forward pass. The mask separates documents explicitly: from positions that jump
        transformers would infer a new document."""
        mask = None
        if batch.packed or positions is not batch.places:
            lowest = torch.finfo(self.output.dtype).min
            hidden = ~batch.visible[:, None]
            mask = torch.zeros_like(hidden, dtype=self.output.dtype).masked_fill_(hidden, lowest)
        output = self.network.base_model(
            batch.tokens, attention_mask=mask, position_ids=positions, use_cache=False
        )
        return TargetOutputs(output.last_hidden_state, self._kv())

    def _kv(self) -> tuple[Tensor, Tensor]:
        pairs = [each.take() for each in self._last]
        if len(pairs) == 1:
            return pairs[0]
        keys, values = zip(*pairs, strict=True)
        return torch.cat(keys, 1), torch.cat(values, 1)


class _KeepKV:
    """Keeps the keys and values of one layer, in place of a cache of all layers."""

    def __init__(self, attention: nn.Module) -> None:
        self._pair: tuple[Tensor, Tensor] | None = None
        attention.register_forward_pre_hook(self._offer, with_kwargs=True)

    def _offer(self, _: nn.Module, given: tuple, named: dict[str, Any]) -> tuple[tuple, dict]:
        return given, named if named.get("past_key_values") else {**named, "past_key_values": self}

    def update(self, keys: Tensor, values: Tensor, *_: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """The cache method that attention calls."""
        self._pair = keys, values
        return keys, values

    def take(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the last forward pass."""
        pair, self._pair = self._pair, None
        assert pair is not None
        return pair


def load_target(name: str, device: str = "auto", layers: int = 1) -> Target:
    """Load the target in bf16 on a GPU, in fp32 on a CPU."""
    where = find_device(device)
    checkpoint = widened(locate(name))
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder)
        network = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            dtype=torch.float32 if where.type == "cpu" else torch.bfloat16,
            attn_implementation="sdpa",
            use_safetensors=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{name} cannot be read: {reason}") from error
    return Target(network.to(where), tokenizer, checkpoint, layers)


@torch.no_grad()
def _check_output(target: Target) -> None:
    """Raise UnsupportedModelError if logits are not features times the output layer."""
    tokens = torch.arange(8, device=target.device)[None]
    expected = target.network(tokens).logits.float()
    features = target.network.base_model(tokens).last_hidden_state
    found = (features @ target.output.T).float()
    allowed = TOLERANCE * expected.abs().max() * (1 if target.output.dtype == torch.float32 else 10)
    if found.shape != expected.shape or (found - expected).abs().max() > allowed:
        raise UnsupportedModelError(
            f"{target.checkpoint.name} scales or caps its logits; heads for it are not supported"
        )
