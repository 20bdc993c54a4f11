"""A CPU forward that behaves like a device's: the next step overwrites its logits."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from graft.kernels.tree_layout import TreeLayout
from graft.models.language_model import Forward

WAITS = {
    "item",
    "tolist",
    "numpy",
    "cpu",
    "nonzero",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
}


class Late:
    """Reports itself as asynchronous, and overwrites its last logits when it runs again."""

    asynchronous = True

    def __init__(self, inner: Forward) -> None:
        self.inner, self.storage = inner, inner.storage
        self._given = torch.zeros(0)
        self.embed, self.output_weight = inner.embed, inner.output_weight
        self.run_first, self.frequencies = inner.run_first, inner.frequencies
        self.weighs_plainly = inner.weighs_plainly

    @property
    def feature_layers(self) -> frozenset[int]:
        return self.inner.feature_layers

    @feature_layers.setter
    def feature_layers(self, layers: frozenset[int]) -> None:
        self.inner.feature_layers = layers

    def queries(self, tokens: np.ndarray, layout: TreeLayout) -> torch.Tensor:
        self._given.fill_(torch.nan)
        return self.inner.queries(tokens, layout)

    def features(self, nodes: np.ndarray, layers: Sequence[int]) -> torch.Tensor:
        return self.inner.features(nodes, layers)

    def run(self, tokens, layout: TreeLayout, outputs: np.ndarray) -> torch.Tensor:
        known = np.asarray(tokens.as_subclass(torch.Tensor)) if torch.is_tensor(tokens) else tokens
        self._given.fill_(torch.nan)
        self._given = self.inner.run(known, layout, outputs).clone()
        return self._given


class Device(torch.Tensor):
    """A tensor that counts operations, also on its results, for which the host waits."""

    waits: Counter[str] = Counter()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in WAITS or (name == "__getitem__" and _is_mask(args[1])):
            cls.waits[name] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def _is_mask(index) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in parts)


class Counted(Late):
    """Late with Device logits."""

    def run(self, tokens, layout: TreeLayout, outputs: np.ndarray) -> torch.Tensor:
        return super().run(tokens, layout, outputs).as_subclass(Device)
