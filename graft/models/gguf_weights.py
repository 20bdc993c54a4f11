"""A decoder's weights in GGUF's own blocks: nothing is widened, memory is the file's size.

Products are repacked into panels tensor by tensor. Rows of the embedding are dequantised when
their tokens come; they stay in the mapped file.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graft.kernels.gguf_blocks import FORMATS, NUMBERED, empty_panels, pack_blocks
from graft.kernels.gguf_dots import part_of
from graft.kernels.panels import COMPUTING, LANES
from graft.models.checkpoints.gguf import stored_order, tensor_names
from graft.models.checkpoints.gguf_reader import GgufFile, damaged, format_name
from graft.models.llama_files import (
    EMBEDDING,
    FINAL_NORM,
    OUTPUT,
    PRODUCT_WEIGHTS,
    PRODUCTS,
    read_layer,
    read_shape,
)
from graft.models.llama_shape import LlamaShape
from graft.models.panel_weights import PanelWeights, small_weights

_FUSED = {"qkv": PRODUCTS[:3], "output": PRODUCTS[3:4], "gate_up": PRODUCTS[4:6]}
_FUSED |= {"down": PRODUCTS[6:]}
_AT_ONCE = 1 << 10  # panels that are packed before the file's pages are released


class GgufTensors:
    """The tensors of a GGUF file under transformers' names; of the vocabulary only the
    first rows, if given."""

    def __init__(self, file: GgufFile, vocabulary: int | None = None) -> None:
        self.file, self._vocabulary = file, vocabulary
        self._names = {ours: theirs for theirs, ours in tensor_names(file).items()}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def number(self, name: str) -> int:
        """GGML's number of a tensor's format."""
        return self.file.tensors[self._names[name]].kind

    def load(self, name: str, rows: slice | None = None) -> Tensor:
        """Dequantised, float32; or some rows."""
        stored = self._names[name]
        values = self.file.load(stored, slice(self._rows(name)) if rows is None else rows)
        order = stored_order(self.file, stored)
        return torch.from_numpy(values.copy() if order is None else values[order])

    def blocks(self, name: str) -> tuple[np.ndarray, int]:
        """Panels of a product's weight, and its depth. The file's pages are released soon."""
        stored, number = self._names[name], self.number(name)
        raw, depth = self.file.raw(stored)[: self._rows(name)], self.file.tensors[stored].shape[1]
        order = stored_order(self.file, stored)
        order = np.arange(len(raw)) if order is None else order
        panels = empty_panels(len(raw), depth, number)
        for first in range(0, len(panels), _AT_ONCE):
            last = first + _AT_ONCE
            try:
                with COMPUTING:
                    rows = order[first * LANES : last * LANES]
                    pack_blocks(raw, number, rows, panels[first:last])
            except ValueError as error:
                found = f"{stored} holds values that are not finite"
                raise damaged(self.file.path, found) from error
            self.file.release(stored)
        return panels, depth

    def rows(self, name: str, tokens: np.ndarray) -> np.ndarray:
        """[..., E] float32 of token ids."""
        values = self.file.load(self._names[name], tokens.ravel())
        return values.reshape(*tokens.shape, -1)

    def _rows(self, name: str) -> int | None:
        return self._vocabulary if name in (EMBEDDING, OUTPUT) else None


def why_not_packed(file: GgufFile, config: dict[str, Any]) -> str | None:
    """What keeps a file's blocks from being multiplied as they are; None if nothing does."""
    for name, tensor in file.tensors.items():
        if len(tensor.shape) == 2 and tensor.kind not in NUMBERED:
            found, known = format_name(tensor.kind), ", ".join(FORMATS)
            return f"{name} is stored as {found}; kernels exist for {known}"
    sizes = {name: config[name] for name in ("hidden_size", "intermediate_size", "head_dim")}
    odd = [f"{name} {size}" for name, size in sizes.items() if size % LANES]
    return f"{odd[0]} is not a multiple of {LANES}" if odd else None


def read_blocks(tensors: GgufTensors, config: Any) -> tuple[LlamaShape, PanelWeights]:  # noqa: ANN401
    """Shape and weights of a file of which `why_not_packed` is None."""
    packed: dict[str, list[np.ndarray]] = {}
    kept: list[np.ndarray] = []

    def table(names: list[str]) -> np.ndarray:
        parts = []
        for name in names:
            panels, depth = tensors.blocks(name)
            kept.append(panels)
            parts.append(part_of(panels, tensors.number(name), depth))
        return np.array(parts, np.int64)

    def load_small(name: str) -> Tensor:
        return torch.empty(0) if name.endswith(PRODUCT_WEIGHTS) else tensors.load(name)

    for layer in range(config.num_hidden_layers):
        own = small_weights(read_layer(load_small, config, layer)) | {
            name: table([f"model.layers.{layer}.{each}.weight" for each in parts])
            for name, parts in _FUSED.items()
        }
        for name, part in own.items():
            packed.setdefault(name, []).append(part)
    stacked = {name: np.stack(parts) for name, parts in packed.items()}
    scales = tuple(stacked.pop(f"{name}_scale") for name in _FUSED)
    head = OUTPUT if OUTPUT in tensors else EMBEDDING
    weights = PanelWeights(
        **stacked,
        scales=scales,
        final_norm=tensors.load(FINAL_NORM).numpy(),
        head=table([head]),
        embedding_rows=partial(tensors.rows, EMBEDDING),
        output_rows=lambda tokens: torch.from_numpy(tensors.rows(head, tokens)),
        inner_weights=config.num_hidden_layers * config.intermediate_size * config.hidden_size,
        blocks=tuple(kept),
    )
    return read_shape(config), weights
