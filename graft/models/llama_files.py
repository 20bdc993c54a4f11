"""Llama-shaped decoders straight from safetensors, without transformers' modules."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from graft.errors import UnsupportedModelError
from graft.kernels.packed_matrix import PackedMatrix
from graft.models.checkpoints.folder import read_header, weight_files
from graft.models.checkpoints.mtp_layouts import mtp_tensors
from graft.models.int8 import quantised
from graft.models.llama_shape import (
    LayerWeights,
    LlamaShape,
    LlamaWeights,
    fused_codes,
    head_size_of,
    is_llama_config,
    shape_of,
    window_of_layer,
)
from graft.models.quantised_files import Layout, layout_of
from graft.models.rope import rope_of

EMBEDDING, FINAL_NORM, OUTPUT = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
PRODUCTS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
PRODUCT_WEIGHTS = tuple(f"{name}.weight" for name in PRODUCTS)
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
HEAD_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
_AT_ONCE = 1 << 27  # bytes read before a file is opened again
IGNORED = "rotary_emb.inv_freq"  # some old files hold what the config says, too


def can_read(folder: Path, config: Any) -> bool:  # noqa: ANN401
    """Whether `read_files` reads this checkpoint: its config is Llama's and its files hold exactly
    the weights that the config names."""
    layout = layout_of(config)
    is_other = layout is None and getattr(config, "quantization_config", None)
    if not is_llama_config(config) or is_other:
        return False
    found = [name for file in weight_files(folder) for name in read_header(file)["tensors"]]
    unused = (IGNORED, *(layout.unused if layout else ()))
    stored = {name for name in found if not name.endswith(unused)}
    if extra := mtp_tensors(stored, config.num_hidden_layers):
        stored -= extra[1].keys()
    return stored == {each for name in tensor_names(config) for each in _parts(name, layout)}


def _parts(name: str, layout: Layout | None) -> list[str]:
    """The tensors that a tensor of transformers' network is stored as."""
    if layout is None or not name.endswith(PRODUCT_WEIGHTS):
        return [name]
    return [f"{name.removesuffix('weight')}{suffix}" for suffix in layout.suffixes]


def tensor_names(config: Any) -> Iterator[str]:  # noqa: ANN401
    """The tensors of a checkpoint of this config, by transformers' names."""
    yield from (EMBEDDING, FINAL_NORM)
    if not config.tie_word_embeddings:
        yield OUTPUT
    for layer in range(config.num_hidden_layers):
        own = [f"{name}.weight" for name in PRODUCTS]
        own += [*NORMS, *_biases(config), *(HEAD_NORMS if config.model_type == "qwen3" else ())]
        yield from (f"model.layers.{layer}.{name}" for name in own)


def _biases(config: Any) -> list[str]:  # noqa: ANN401
    """Of queries, keys and values. Where Llama has them, its output has one too: not read here."""
    return [f"{name}.bias" for name in PRODUCTS[:3]] if config.model_type == "qwen2" else []


class FolderTensors:
    """The tensors of a folder's safetensors files; of the vocabulary only the first rows, if given.

    Tensors are views of a mapped file. It is opened again from time to time: pages of tensors that
    are not in use leave the memory.
    """

    def __init__(self, folder: Path, vocabulary: int | None = None) -> None:
        self._vocabulary = vocabulary
        self._files = {
            name: file for file in weight_files(folder) for name in read_header(file)["tensors"]
        }
        self._path: Path | None = None
        self._opened: Any = None
        self._bytes = 0  # read since it was opened

    def load(self, name: str, rows: slice | None = None) -> Tensor:
        """The tensor in its own dtype, or some of its rows."""
        file = self._file(self._files[name])
        if rows is None and name in (EMBEDDING, OUTPUT):
            rows = slice(self._vocabulary)
        tensor = file.get_tensor(name) if rows is None else file.get_slice(name)[rows]
        self._bytes += tensor.nbytes
        return tensor

    def matrix(
        self, name: str, dtype: torch.dtype | None, device: torch.device
    ) -> Tensor | PackedMatrix:
        """A product's matrix on a device, as it is multiplied in a dtype."""
        return self.load(name).to(device=device, dtype=dtype)

    def _file(self, path: Path) -> Any:  # noqa: ANN401  safetensors'
        if path != self._path or self._bytes > _AT_ONCE:
            self._opened = None  # the old one is closed first
            self._path, self._opened, self._bytes = path, safe_open(path, "pt"), 0
        return self._opened


class QuantisedTensors(FolderTensors):
    """Those of a quantised checkpoint; products are dequantised, or packed matrices."""

    def __init__(self, folder: Path, layout: Layout, vocabulary: int | None = None) -> None:
        super().__init__(folder, vocabulary)
        self._layout, self._folder = layout, folder

    def load(self, name: str, rows: slice | None = None) -> Tensor:
        """The tensor in its own dtype, or dequantised in float32."""
        if not name.endswith(PRODUCT_WEIGHTS):
            return super().load(name, rows)
        matrix = self.matrix(name, torch.float32, torch.device("cpu"))
        dense = matrix.dense()
        return dense if matrix.factors is None else dense * matrix.factors[:, None]

    def matrix(self, name: str, dtype: torch.dtype | None, device: torch.device) -> PackedMatrix:
        """See FolderTensors."""
        assert dtype, "scales are rounded to the dtype of products"
        prefix = name.removesuffix("weight")
        load = super().load
        try:
            return self._layout.read(lambda suffix: load(prefix + suffix).to(device), dtype)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{self._folder.name}: {error}") from error


def open_tensors(
    folder: Path,
    config: Any,  # noqa: ANN401
    vocabulary: int | None = None,
) -> FolderTensors:
    """The tensors of a checkpoint for which `can_read` holds."""
    layout = layout_of(config)
    if layout is None:
        return FolderTensors(folder, vocabulary)
    return QuantisedTensors(folder, layout, vocabulary)


class LazyRows:
    """A matrix of the vocabulary, [V, E], whose rows are read when they are accessed."""

    def __init__(self, load: Callable[[str, slice], Tensor], name: str, rows: int) -> None:
        self._load, self._name, self._rows = load, name, rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: slice) -> Tensor:
        first, last, _ = rows.indices(self._rows)
        return self._load(self._name, slice(first, last))


class LazyLayers(Sequence[LayerWeights]):
    """Layers that are read when they are accessed."""

    def __init__(self, load: Callable[[str], Tensor], config: Any) -> None:  # noqa: ANN401
        self._load, self._config = load, config

    def __len__(self) -> int:
        return self._config.num_hidden_layers

    def __getitem__(self, layer: "Any") -> "Any":  # noqa: ANN401
        if layer >= len(self):
            raise IndexError(layer)
        return read_layer(self._load, self._config, layer)


def read_files(
    tensors: FolderTensors,
    config: Any,  # noqa: ANN401
    dtype: torch.dtype | None,
    device: torch.device,
    *,
    int8: bool = False,
    packed: bool = False,
) -> tuple[LlamaShape, LlamaWeights]:
    """Shape and (fused) weights of a checkpoint for which `can_read` holds, in the files' dtypes
    where `dtype` is None. Layers and rows of the vocabulary are read on access; see
    `LlamaWeights.in_memory`. `int8` quantises products; quantised ones stay so if `packed`."""

    def load(name: str, rows: slice | None = None) -> Any:  # noqa: ANN401  a tensor or PackedMatrix
        if int8 and name.endswith(PRODUCT_WEIGHTS):
            return quantised(tensors.load(name)).detach()
        if packed and name.endswith(PRODUCT_WEIGHTS):
            return tensors.matrix(name, dtype, device)
        return tensors.load(name, rows).to(device=device, dtype=dtype)

    embedding = LazyRows(load, EMBEDDING, config.vocab_size)
    tied = config.tie_word_embeddings
    weights = LlamaWeights(
        embedding=embedding,
        layers=LazyLayers(load, config),
        final_norm=load(FINAL_NORM),
        head=embedding if tied else LazyRows(load, OUTPUT, config.vocab_size),
    )
    return read_shape(config, device), weights


def read_shape(config: Any, device: torch.device | None = None) -> LlamaShape:  # noqa: ANN401
    """The shape of a checkpoint for which `can_read` holds."""
    rope = rope_of(config.rope_parameters, head_size_of(config), config.max_position_embeddings)
    return shape_of(config, rope.to(device or torch.device("cpu")))


def read_layer(
    load: Callable[[str], Tensor],
    config: Any,  # noqa: ANN401
    layer: int,
) -> LayerWeights:
    """One layer, its products fused."""
    prefix = f"model.layers.{layer}."
    products = [load(f"{prefix}{name}.weight") for name in PRODUCTS]
    (qkv, output, gate_up, down), scales = fused_codes(products)
    biases = [load(prefix + name) for name in _biases(config)]
    normed = config.model_type == "qwen3"
    return LayerWeights(
        attention_norm=load(prefix + NORMS[0]),
        qkv=qkv,
        qkv_bias=torch.cat(biases) if biases else None,
        head_norms=(load(prefix + HEAD_NORMS[0]), load(prefix + HEAD_NORMS[1])) if normed else None,
        output=output,
        mlp_norm=load(prefix + NORMS[1]),
        gate_up=gate_up,
        down=down,
        window=window_of_layer(config, layer),
        scales=scales,
    )
