"""torch.compile on GPUs, where memory traffic dominates a step.

Sizes are fixed in a run, so everything is compiled for static shapes. What cannot be compiled (for
lack of a C compiler, say) runs eagerly, with torch's warning.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MAX_SHAPES = 64


def compiles(tensor: Tensor) -> bool:
    """Whether to compile code that runs on this tensor's device."""
    return tensor.device.type == "cuda"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled on its first call."""
    _fall_back_to_eager()
    return torch.compile(function, dynamic=False)


def compile_in_place(*modules: nn.Module) -> None:
    """The same for modules; modules of one class share the compiled code."""
    _fall_back_to_eager()
    for module in modules:
        module.compile(dynamic=False)


def _fall_back_to_eager() -> None:
    """Run eagerly what cannot be compiled. A chain of steps has a shape for each step."""
    torch._dynamo.config.suppress_errors = True
    torch._dynamo.config.recompile_limit = MAX_SHAPES
