"""What launches know of the device, and overlapped launches: the next kernel starts while this one
ends, on GPUs that can.

With programmatic dependent launch a kernel's programs are scheduled before the kernel in front of
them has finished. Each kernel allows that at once and waits before it touches memory that others
write.
"""

from functools import cache

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


@triton.jit
def wait(PDL: tl.constexpr):
    """Let the next kernel start, then wait for the one before."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
