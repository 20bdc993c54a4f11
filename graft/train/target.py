"""The frozen target: what it thinks of every token of a batch, for a head to learn from."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.utils import logging

from graft.errors import CheckpointError, UnsupportedModelError
from graft.models.checkpoints.pretrained import Checkpoint, locate
from graft.models.load import find_device
from graft.train.batches import Batch
from graft.train.compiling import compile_in_place, compiles

CLOSE = 1e-2  # between our logits and the network's, in 32 bits


@dataclass(frozen=True, slots=True)
class Reading:
    """Features (after the final norm) [B, T, E]; keys and values [B, n * K, T, D] of the last n
    layers, the last one's first."""

    features: Tensor
    memory: tuple[Tensor, Tensor]


class Target:
    """A transformers model that is never changed; `layers`: how many of its last ones are read."""

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
        self._last = [_Memory(layer.self_attn) for layer in reversed(last)]
        if compiles(self.output):
            compile_in_place(*others)

    @property
    def config(self) -> PretrainedConfig:
        """As transformers describes it."""
        return self.network.config

    @property
    def device(self) -> torch.device:
        """Where it lies, and where batches go."""
        return self.output.device

    @torch.no_grad()
    def read(self, batch: Batch, positions: Tensor) -> Reading:
        """One forward. Documents are told apart by a mask of our own: where positions jump,
        transformers would see a new one."""
        mask = None
        if batch.packed or positions is not batch.places:
            least = torch.finfo(self.output.dtype).min
            hidden = ~batch.visible[:, None]
            mask = torch.zeros_like(hidden, dtype=self.output.dtype).masked_fill_(hidden, least)
        read = self.network.base_model(
            batch.tokens, attention_mask=mask, position_ids=positions, use_cache=False
        )
        return Reading(read.last_hidden_state, self._memory())

    def _memory(self) -> tuple[Tensor, Tensor]:
        pairs = [each.taken() for each in self._last]
        if len(pairs) == 1:
            return pairs[0]
        keys, values = zip(*pairs, strict=True)
        return torch.cat(keys, 1), torch.cat(values, 1)


class _Memory:
    """Takes one layer's keys and values in place of a cache, which would hold those of all."""

    def __init__(self, attention: nn.Module) -> None:
        self._pair: tuple[Tensor, Tensor] | None = None
        attention.register_forward_pre_hook(self._offer, with_kwargs=True)

    def _offer(self, _: nn.Module, given: tuple, named: dict[str, Any]) -> tuple[tuple, dict]:
        return given, named if named.get("past_key_values") else {**named, "past_key_values": self}

    def update(self, keys: Tensor, values: Tensor, *_: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """What attention calls a cache with."""
        self._pair = keys, values
        return keys, values

    def taken(self) -> tuple[Tensor, Tensor]:
        """Those of the last forward."""
        pair, self._pair = self._pair, None
        return pair


def load_target(name: str, device: str = "auto", layers: int = 1) -> Target:
    """In bf16 on a GPU, in fp32 on a CPU; see Target."""
    where = find_device(device)
    checkpoint = locate(name)
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
    """Refuse targets whose logits are more than a product of features and output layer."""
    tokens = torch.arange(8, device=target.device)[None]
    expected = target.network(tokens).logits.float()
    features = target.network.base_model(tokens).last_hidden_state
    found = (features @ target.output.T).float()
    allowed = CLOSE * expected.abs().max() * (1 if target.output.dtype == torch.float32 else 10)
    if found.shape != expected.shape or (found - expected).abs().max() > allowed:
        raise UnsupportedModelError(
            f"{target.checkpoint.name} scales or caps its logits; heads for it are not supported"
        )
