"""Compiled with torch.compile where it pays: on a GPU, where most of a step is passes over memory.

Sizes are fixed in a run, so everything is compiled for its very size. What cannot be compiled (no
C compiler, say) runs as it is, with torch's warning.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def compiles(tensor: Tensor) -> bool:
    """Whether code that works on this tensor is worth compiling."""
    return tensor.device.type == "cuda"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled when it is first called."""
    _tolerate()
    return torch.compile(function, dynamic=False)


def compile_in_place(*modules: nn.Module) -> None:
    """The same for modules; those of one kind share what is compiled."""
    _tolerate()
    for module in modules:
        module.compile(dynamic=False)


def _tolerate() -> None:
    """Let what cannot be compiled run as it is."""
    torch._dynamo.config.suppress_errors = True  # noqa: SLF001 (torch's only switch for this)
