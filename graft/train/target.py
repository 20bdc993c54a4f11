"""The frozen target: features, keys and values of a batch to train a head on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
)
from transformers.utils import logging

from graft.errors import CheckpointError, UnsupportedModelError
from graft.models.checkpoints.pretrained import Checkpoint, widened
from graft.models.heads.row_masks import FAR, Mask, masked_attention, row_mask
from graft.models.load import find_device
from graft.train.batches import Batch
from graft.train.compiling import compile_in_place, compiles
from graft.train.kept import KeptOutputs

TOLERANCE = 1e-2  # of logits in fp32, relative to the largest
ATTENTION = "graft_rows"


@dataclass(frozen=True, slots=True)
class TargetOutputs:
    """The inputs of the output layer [B, T, E]; what the head reads: features [B, T, n * E], and
    keys and values [B, n * K, T, D] of the last n layers, the last one's first."""

    last: Tensor
    features: Tensor
    kv: tuple[Tensor, Tensor] | None


class Target:
    """A frozen transformers model; `layers` is the number of last layers whose KV is used,
    `features` are the hidden states that the head reads (`HeadConfig.feature_layers`)."""

    def __init__(
        self,
        network: Any,  # noqa: ANN401
        tokenizer: Any,  # noqa: ANN401
        checkpoint: Checkpoint,
        layers: int = 0,
        features: Sequence[int] = (-1,),
    ) -> None:
        self.network = network.eval().requires_grad_(False)  # noqa: FBT003 (torch's signature)
        network.set_attn_implementation(ATTENTION)
        self.tokenizer, self.checkpoint = tokenizer, checkpoint
        self.embedding: Tensor = network.get_input_embeddings().weight
        self.output: Tensor = network.get_output_embeddings().weight
        _check_output(self)
        modules = list(network.base_model.layers)
        kept = range(len(modules) - layers, len(modules))
        self._last = [_KeepKV(modules[place].self_attn) for place in reversed(kept)]
        self._features = features
        self.kept: KeptOutputs | None = None
        self._inner = {place: _KeepInput(modules[place]) for place in features if place >= 0}
        if compiles(self.output):  # what has hooks runs eagerly
            hooked = {*kept, *self._inner}
            compile_in_place(*(each for i, each in enumerate(modules) if i not in hooked))

    @property
    def config(self) -> PretrainedConfig:
        """The model's config."""
        return self.network.config

    @property
    def device(self) -> torch.device:
        """The device of the model and of batches."""
        return self.output.device

    def forward(self, batch: Batch, positions: Tensor) -> TargetOutputs:
        """One forward pass, or the kept outputs of one with the same positions: their `last` is
        zero where no loss reads it."""
        if self.kept is None or not batch.rows:
            return self._run(batch, positions)
        read = _read_by_loss(batch)
        if parts := self.kept.take(batch.rows, self.device):
            last, *whole = parts
            return self._of_kept(torch.cat(last), [torch.stack(each) for each in whole], read)
        outputs = self._run(batch, positions)
        whole = [*([outputs.features] if self._features else ()), *(outputs.kv or ())]
        for place, row in enumerate(batch.rows):
            rest = [each[place] for each in whole]
            self.kept.add(row, [outputs.last[place][read[place]], *rest])
        return outputs

    def _of_kept(self, used: Tensor, whole: list[Tensor], read: Tensor) -> TargetOutputs:
        last = used.new_zeros(*read.shape, used.shape[-1])
        last[read] = used
        features = whole.pop(0) if self._features else last
        return TargetOutputs(last, features, (whole[0], whole[1]) if whole else None)

    @torch.no_grad()
    def _run(self, batch: Batch, positions: Tensor) -> TargetOutputs:
        mask = row_mask(batch.documents, (0, FAR)) if batch.packed else None
        if isinstance(mask, Tensor):
            mask = mask[:, None]  # transformers passes masks of four dimensions on
        last = self.network.base_model(
            batch.tokens, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        states = {-1: last} | {place: each.take() for place, each in self._inner.items()}
        kept = [states[place] for place in self._features] or [last]
        pairs = [each.take() for each in self._last]
        kv = None
        if pairs:
            keys, values = zip(*pairs, strict=True)
            kv = torch.cat(keys, 1), torch.cat(values, 1)
        return TargetOutputs(last, kept[0] if len(kept) == 1 else torch.cat(kept, -1), kv)


def _read_by_loss(batch: Batch) -> Tensor:
    """[B, T]: where the target predicts a token in the loss."""
    return batch.loss_mask.roll(-1, 1)


def attend_rows(  # noqa: PLR0913  transformers' contract
    module: nn.Module,  # noqa: ARG001
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **ignored: Any,  # noqa: ANN401, ARG001  dropout and whatever else a model passes along
) -> tuple[Tensor, None]:
    """transformers' attention contract, by the mask of packed rows."""
    windowed = sliding_window is not None and sliding_window < query.shape[2]
    if windowed or softcap is not None or s_aux is not None:
        raise UnsupportedModelError(
            "the target's attention has a window, a cap or sinks; use a smaller --length or "
            "another target"
        )
    if isinstance(attention_mask, Tensor):
        attention_mask = attention_mask[:, 0]
    attended = masked_attention(query, key, value, attention_mask, scaling)
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, attend_rows)


class _KeepInput:
    """Keeps the input of one layer."""

    def __init__(self, layer: nn.Module) -> None:
        self._kept: Tensor | None = None
        layer.register_forward_pre_hook(self._keep)

    def _keep(self, _: nn.Module, given: tuple) -> None:
        self._kept = given[0]

    def take(self) -> Tensor:
        """The input in the last forward pass."""
        kept, self._kept = self._kept, None
        assert kept is not None
        return kept


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


def load_target(
    checkpoint: Checkpoint, device: str = "auto", layers: int = 0, features: Sequence[int] = (-1,)
) -> Target:
    """Load the target in bf16 on a GPU, in fp32 on a CPU; see Target."""
    where = find_device(device)
    checkpoint = widened(checkpoint)
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder)
        network = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            dtype=torch.float32 if where.type == "cpu" else torch.bfloat16,
            use_safetensors=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{checkpoint.name} cannot be read: {reason}") from error
    return Target(network.to(where), tokenizer, checkpoint, layers, features)


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
