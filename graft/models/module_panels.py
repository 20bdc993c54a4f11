"""transformers' modules on the CPU with our products: their weights lie in panels.

A BLAS takes many times longer for a few rows of 16-bit weights, and for several rows of any. Panels
are read once for all rows of a step, at memory speed (`kernels/panels.py`). As in `forward_panels`,
16 bits are storage: activations and the KV cache are float32. RMS norms are ours too: torch takes
seven calls for one. Everything else runs as it is.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from graft.errors import UnsupportedModelError
from graft.kernels.expert_panels import multiply_experts
from graft.kernels.panels import COMPUTING, LANES, UNROLL
from graft.kernels.products import pack_weight
from graft.models.forward_hook import HookForward
from graft.models.forward_panels import linear, norm_rows, use_threads
from graft.models.known_modules import rms_norm_of
from graft.models.panel_weights import bits, from_bits

INNER = {True: "gate_up_proj", False: "up_proj"}  # by whether experts have a gate
MIN_SHARED_WEIGHTS = 1 << 18  # fewer are multiplied by one thread
UNSCALED = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Panels:
    """Matrices [columns, depth], packed: [..., P, K, 16], K being the depth of whole unrolls;
    `transposed` says how the model has them, `threads` how many should multiply one."""

    packed: np.ndarray
    columns: int
    depth: int
    transposed: bool
    threads: int

    @classmethod
    def of(cls, weight: Tensor, dtype: torch.dtype, *, transposed: bool = False) -> "Panels":
        """Of a matrix, or of several [n, columns, depth], rounded to a dtype."""
        *lead, columns, depth = weight.shape
        matrices = weight.reshape(-1, columns, depth)
        shape = (len(matrices), -(-columns // LANES), depth + -depth % UNROLL, LANES)
        packed = np.zeros(shape, bits(weight.new_empty(0, dtype=dtype)).dtype)
        for place, matrix in zip(packed, matrices, strict=True):
            pack_weight(bits(F.pad(matrix, (0, -depth % UNROLL)).to(dtype)), place)
        threads = use_threads() if columns * depth >= MIN_SHARED_WEIGHTS else 1
        return cls(packed.reshape(*lead, *shape[1:]), columns, depth, transposed, threads)

    def rows(self, chosen: np.ndarray) -> Tensor:
        """Rows [..., depth] of a single matrix, in its dtype."""
        found = self.packed[chosen // LANES, : self.depth, chosen % LANES]
        return from_bits(np.ascontiguousarray(found))

    def weight(self) -> Tensor:
        """The matrices as the model has them, but rounded."""
        found = self.packed.swapaxes(-1, -2)
        flat = found.reshape(*found.shape[:-3], -1, found.shape[-1])
        whole = from_bits(np.ascontiguousarray(flat[..., : self.columns, : self.depth]))
        return whole.mT.contiguous() if self.transposed else whole

    def multiply(self, x: Tensor, by: Callable[[np.ndarray, np.ndarray], None]) -> Tensor:
        """[M, columns] of x [M, depth]; `by` fills in the result of whole panels."""
        missing = -self.depth % UNROLL
        rows = (F.pad(x, (0, missing)) if missing else x.contiguous()).numpy()
        result = torch.empty(len(rows), self.packed.shape[-3] * LANES)  # aligned, see `_norm`
        with COMPUTING:
            by(rows, result.numpy())
        return result[:, : self.columns]


class ModulePanels:
    """The panels of a model that is owned and in float32; its modules' own weights are dropped."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        tables = model.get_input_embeddings(), model.get_output_embeddings()
        if not all(_is_plain(each.weight) for each in tables):
            raise UnsupportedModelError("its embeddings are quantised")
        self._dtype = dtype
        self._packed: dict[nn.Parameter, Panels] = {}
        self._replaced: list[nn.Module] = []
        for module in model.modules():
            if type(module) is nn.Linear and _is_plain(module.weight):
                self._replace(module, partial(_linear, self._pack(module.weight), module.bias))
            elif hasattr(module, "_apply_gate") and hasattr(module, "is_transposed"):
                self._replace_experts(module)
            elif norm := rms_norm_of(module, _norm):
                self._replace(module, norm)
        embedding, output = tables
        self.head = self._pack(output.weight)
        self._replace(embedding, Embedding(embedding, self._pack(embedding.weight)))

    def undo(self) -> None:
        """The model as it was, its weights rounded."""
        for parameter, panels in self._packed.items():
            parameter.data = panels.weight().float()
        for module in self._replaced:
            del vars(module)["forward"]

    def _pack(self, weight: nn.Parameter, *, transposed: bool = False) -> Panels:
        if weight not in self._packed:
            given = weight.detach().mT if transposed else weight.detach()
            self._packed[weight] = Panels.of(given, self._dtype, transposed=transposed)
            weight.data = weight.data.new_empty(0)
        return self._packed[weight]

    def _replace(self, module: nn.Module, forward: Callable[..., Tensor]) -> None:
        vars(module)["forward"] = forward
        self._replaced.append(module)

    def _replace_experts(self, module: Any) -> None:  # noqa: ANN401
        """transformers' contract for experts, where their matrices are plain."""
        inner = module.gate_up_proj if module.has_gate else module.up_proj
        if _is_plain(inner, dims=3) and _is_plain(module.down_proj, dims=3):
            pack = partial(self._pack, transposed=module.is_transposed)
            both = pack(inner), pack(module.down_proj)
            self._replace(module, partial(_through_experts, module, *both))


class PanelHookForward(HookForward):
    """A model of transformers whose products are ours."""

    def __init__(
        self, model: PreTrainedModel, attention: Callable[..., Tensor], panels: ModulePanels
    ) -> None:
        super().__init__(model, attention)
        self._panels = panels

    def output_weight(self, tokens: Tensor | None) -> Tensor:
        """See Forward."""
        known = np.arange(self._panels.head.columns) if tokens is None else tokens.numpy()
        return self._panels.head.rows(known).float()


class Embedding:
    """The forward of an embedding whose table is packed."""

    def __init__(self, module: nn.Module, table: Panels) -> None:
        self._table, self._forward = table, type(module).forward
        self._looked_up = copy.copy(module)  # with the rows of some tokens as its table
        self._looked_up._parameters = {}
        self._looked_up.padding_idx = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """[..., E] of token ids; the module may scale them."""
        self._looked_up.weight = self._table.rows(tokens.flatten().numpy()).float()
        return self._forward(self._looked_up, torch.arange(tokens.numel()).view(tokens.shape))


def _is_plain(weight: Any, dims: int = 2) -> bool:  # noqa: ANN401
    return type(weight) is nn.Parameter and weight.dtype == torch.float32 and weight.dim() == dims


def _linear(panels: Panels, bias: Tensor | None, x: Tensor) -> Tensor:
    def multiply(rows: np.ndarray, result: np.ndarray) -> None:
        linear(rows, panels.packed, UNSCALED, result, panels.threads)

    found = panels.multiply(x.reshape(-1, x.shape[-1]), multiply)
    return (found if bias is None else found + bias).reshape(*x.shape[:-1], panels.columns)


def _norm(gain: Tensor, epsilon: float, x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1]).numpy()
    found = norm_rows(np.ascontiguousarray(rows), gain.numpy(), np.float32(epsilon))
    # torch's memory, since a BLAS may add up in another order for another alignment.
    return torch.from_numpy(found).view(x.shape).clone()


def _through_experts(
    module: Any,  # noqa: ANN401
    inner: Panels,
    outer: Panels,
    hidden: Tensor,
    chosen: Tensor,
    weights: Tensor,
) -> Tensor:
    """Hidden [N, E] through the experts chosen [N, k], summed by their weights [N, k]."""
    order = chosen.flatten().argsort(stable=True)
    experts = chosen.flatten()[order]
    numbers, counts = experts.unique_consecutive(return_counts=True)
    bounds = F.pad(counts.cumsum(0), (1, 0)).numpy()

    def multiply(panels: Panels, x: Tensor, name: str) -> Tensor:
        def by(rows: np.ndarray, result: np.ndarray) -> None:
            given = (rows, numbers.numpy(), bounds, panels.packed, UNSCALED, result)
            multiply_experts(*given, panels.threads)

        found = panels.multiply(x, by)
        return found + getattr(module, f"{name}_bias")[experts] if module.has_bias else found

    found = multiply(inner, hidden[order // chosen.shape[1]], INNER[module.has_gate])
    found = module._apply_gate(found) if module.has_gate else module.act_fn(found)
    found = multiply(outer, found, "down_proj")
    if getattr(module, "has_post_expert_norm", False):
        found = module.post_expert_norm(found)
    apart = torch.empty_like(found)
    apart[order] = found
    return (apart.view(*chosen.shape, -1) * weights[..., None]).sum(1).to(hidden.dtype)
