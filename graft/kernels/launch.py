"""What launches know of the device, short launches, and overlapped ones: the next kernel starts
while this one ends, on GPUs that can.

With programmatic dependent launch a kernel's programs are scheduled before the kernel in front of
them has finished. Each kernel allows that at once and waits before it touches memory that others
write.
"""

from collections.abc import Callable, Hashable
from functools import cache
from inspect import signature
from typing import Any

import torch
import triton
import triton.language as tl


@cache
def overlapped(device: torch.device, *, early: bool = True) -> dict[str, bool]:
    """The options of a launch on this device: PDL for the kernel, and for the driver.

    Not `early`: the kernel starts when the one before has finished, and lets the next start. Its
    programs are then spread evenly; early ones lie where there is space at that moment, two on one
    processor and none on another, which costs a kernel with one long program on each.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 9:  # noqa: PLR2004
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": early}


def multiprocessors(device: torch.device) -> int:
    """Of the device; Triton's interpreter has 4."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


class Launcher:
    """Launches a kernel without Triton's look at each argument, which takes the host longer than
    the device some kernels. A decorator of the function that Triton compiles.

    The kernel specializes on nothing but its constants and its arguments' types, so that its caller
    knows which variant a launch needs.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        given = [
            name
            for name, each in signature(function).parameters.items()
            if each.annotation is not tl.constexpr
        ]
        compiled = triton.jit(do_not_specialize=given, do_not_specialize_on_alignment=given)
        self.kernel: Any = compiled(function)
        self._variants: dict[Hashable, Any] = {}

    def __call__(
        self,
        variant: Hashable,
        grid: tuple[int, int, int],
        arguments: tuple[Any, ...],
        constants: dict[str, Any],
        warps: int,
    ) -> None:
        """Launch with arguments and constants in the kernel's order. `variant` stands for the
        constants and for those types of arguments that are not always the same."""
        known = self._variants.get(variant)
        if known is None:  # the interpreter compiles nothing
            launch = self.kernel[grid]
            self._variants[variant] = launch(*arguments, **constants, num_warps=warps)
        else:
            known[grid](*arguments, *constants.values())


@triton.jit
def wait(PDL: tl.constexpr):
    """Let the next kernel start, then wait for the one before."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
