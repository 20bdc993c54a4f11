"""What `graft bench kernels` is asked to measure, checked before anything slow begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from graft.bench.kernels.shapes import Shape, read_shape
from graft.bench.sizes import size
from graft.errors import InputError
from graft.models.language_model import dtype_of
from graft.models.load import find_device

DTYPES = ("fp32", "bf16", "fp16")
Part = Literal["attention", "steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSettings:
    """One run; every pair of a context and a number of nodes is a point of its own."""

    shape: Shape
    contexts: Sequence[int]
    nodes: Sequence[int]
    dtype: str
    device: torch.device
    parts: Sequence[Part]
    repeats: int

    def __post_init__(self) -> None:
        for name, values in (("contexts", self.contexts), ("nodes", self.nodes)):
            if not values or min(values) < 1:
                raise InputError(f"--{name} takes whole numbers from 1 on, such as 1,8,64")
        if self.repeats < 1:
            raise InputError(f"--repeats must be at least 1, not {self.repeats}")
        if self.dtype not in DTYPES:
            raise InputError(f"unknown dtype {self.dtype!r}; choose from {', '.join(DTYPES)}")
        if list(self.parts) == ["steps"] and not self.shape.layers:
            raise InputError(f"--only steps needs a whole shape, not the heads {self.shape.name}")

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
    """What is measured where nothing is said: a minute or two."""

    shape: str
    contexts: Sequence[int]
    nodes: Sequence[int]
    dtype: str
    repeats: int


DEFAULTS = {
    "cuda": Defaults("llama-8b", (4096, 32768, 131072), (1, 8, 16, 32, 64), "bf16", 20),
    "cpu": Defaults("smollm2", (512, 2048), (1, 4, 16, 64), "fp32", 5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options as they are typed; None is what suits the device."""

    shape: str | None = None
    contexts: str | None = None
    nodes: str | None = None
    dtype: str | None = None
    device: str = "auto"
    layers: int | None = None
    only: str | None = None
    repeats: int | None = None

    def settings(self) -> KernelSettings:
        """Checked; InputError for what cannot be measured."""
        if self.only not in (None, "attention", "steps"):
            raise InputError(f"--only is attention or steps, not {self.only!r}")
        device = find_device(self.device)
        usual = DEFAULTS[device.type]
        return KernelSettings(
            shape=read_shape(self.shape or usual.shape).with_layers(self.layers),
            contexts=_sizes(self.contexts, "--contexts") or usual.contexts,
            nodes=_sizes(self.nodes, "--nodes") or usual.nodes,
            dtype=self.dtype or usual.dtype,
            device=device,
            parts=(self.only,) if self.only else ("attention", "steps"),
            repeats=usual.repeats if self.repeats is None else self.repeats,
        )


def _sizes(text: str | None, option: str) -> tuple[int, ...]:
    """A comma-separated list, ascending, each once; `4k` is 4096."""
    if text is None:
        return ()
    try:
        found = {size(part) for part in text.split(",") if part.strip()}
    except ValueError:
        found = set()
    if not found:
        raise InputError(f"{option} takes whole numbers, separated by commas, not {text!r}")
    return tuple(sorted(found))
