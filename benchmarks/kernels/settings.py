"""Settings of `python -m benchmarks kernels`, checked before anything is measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from benchmarks.kernels.shapes import with_layers
from benchmarks.settings import Settings, option
from graft.bench.simulate.shapes import KNOWN, Shape, read_shape
from graft.errors import InputError
from graft.models.language_model import dtype_of
from graft.models.load import find_device

DTYPES = ("fp32", "bf16", "fp16")
PARTS = ("attention", "step")


@dataclass(frozen=True, kw_only=True)
class KernelOptions(Settings):
    """Tree attention against other kernels, and whole steps; defaults depend on the device."""

    kind: ClassVar[str] = "kernels"

    shape: str | None = option(None, f"{', '.join(KNOWN)} or HEADS/KV_HEADS/HEAD_SIZE")
    contexts: tuple[int, ...] = option((), "tokens, such as 4k,32k")
    nodes: tuple[int, ...] = option((), "of the tree, such as 1,8,64")
    layers: int | None = option(None, "fewer than the shape has")
    parts: tuple[str, ...] = option(PARTS, "attention, step")
    repeats: int | None = option(None, "timings, of which the median counts")

    def plan(self) -> "KernelPlan":
        """What is measured on this device."""
        device = find_device(self.device)
        usual = DEFAULTS[device.type]
        shape = read_shape(self.shape or usual.shape)
        return KernelPlan(
            shape=shape if self.layers is None else with_layers(shape, self.layers),
            of_layers=0 if self.layers is None else shape.layers,
            contexts=sorted(self.contexts) or usual.contexts,
            nodes=sorted(self.nodes) or usual.nodes,
            dtype=usual.dtype if self.dtype == "auto" else self.dtype,
            device=device,
            parts=self.parts,
            repeats=self.repeats or usual.repeats,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan:
    """Every pair of a context and a number of nodes is a point of its own."""

    shape: Shape
    contexts: Sequence[int]
    nodes: Sequence[int]
    dtype: str
    device: torch.device
    parts: Sequence[str]
    repeats: int
    of_layers: int = 0  # the full depth, where fewer layers are measured

    def __post_init__(self) -> None:
        for name, values in (("contexts", self.contexts), ("nodes", self.nodes)):
            if min(values) < 1:
                raise InputError(f"--{name} takes whole numbers from 1 on, such as 1,8,64")
        if self.dtype not in DTYPES:
            raise InputError(f"unknown dtype {self.dtype!r}; choose from {', '.join(DTYPES)}")
        if unknown := [part for part in self.parts if part not in PARTS]:
            raise InputError(f"--parts is attention, step or both, not {unknown[0]!r}")
        if list(self.parts) == ["step"] and not self.shape.layers:
            raise InputError(f"--parts step needs a whole shape, not the heads {self.shape.name}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """As torch names it."""
        return dtype_of(self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self.torch_dtype.itemsize

    @property
    def rows(self) -> int:
        """Cache rows of the largest point."""
        return max(self.contexts) + max(self.nodes)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What is measured by default: a minute or two."""

    shape: str
    contexts: Sequence[int]
    nodes: Sequence[int]
    dtype: str
    repeats: int


DEFAULTS = {
    "cuda": Defaults("llama-8b", (4096, 32768, 131072), (1, 8, 16, 32, 64), "bf16", 20),
    "cpu": Defaults("smollm2", (512, 2048), (1, 4, 16, 64), "fp32", 5),
}
