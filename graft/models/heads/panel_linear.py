"""`nn.Linear` by our CPU products: a few rows cost little more than one (see `panels.py`)."""

import numpy as np
import torch
from torch import Tensor, nn

from graft.kernels.panels import COMPUTING, LANES
from graft.kernels.products import pack_weight
from graft.models.forward_panels import linear, use_threads
from graft.models.panel_weights import bits

_NO_SCALE = np.empty(0, np.float32)


class PanelLinear(nn.Module):
    """x @ weight.T + bias in 32 bits, whatever the dtype of the weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self._columns = weight.shape[0]
        self.panels = pack_weight(bits(weight))
        self.bias = None if bias is None else bias.detach().float()
        self._threads = use_threads()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        rows = x.float().reshape(-1, x.shape[-1]).contiguous().numpy()
        y = np.empty((len(rows), self.panels.shape[0] * LANES), np.float32)
        with COMPUTING:
            linear(rows, self.panels, _NO_SCALE, y, self._threads)
        found = torch.from_numpy(y)[:, : self._columns].unflatten(0, x.shape[:-1])
        return found if self.bias is None else found + self.bias


def pack_linears(module: nn.Module) -> None:
    """Replace every `nn.Linear` inside."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, PanelLinear(child.weight, child.bias))
        else:
            pack_linears(child)
