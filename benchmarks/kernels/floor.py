"""Lower bounds of times, from the measured throughput of copies and products.

The copy counts what it reads and what it writes. A kernel that only reads may come a little below
such a floor where reading is faster than writing, as on many CPUs.
"""

import torch

from benchmarks.kernels.settings import KernelPlan
from benchmarks.kernels.timing import seconds
from graft.bench.simulate.shapes import Ceilings

COPIED = {"cuda": 1 << 30, "cpu": 1 << 28}  # bytes
SQUARE = {"cuda": 8192, "cpu": 512}


def measure_ceilings(plan: KernelPlan) -> Ceilings:
    """A large copy on the device, by the driver or by a kernel, whichever is faster, and a large
    square product in the dtype."""
    device, dtype = plan.device, plan.torch_dtype
    size = COPIED[device.type]
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    timing = {"repeats": plan.repeats, "device": device}
    copies = (lambda: target.copy_(source), lambda: torch.neg(source, out=target))
    copying = min(seconds([copy], **timing) for copy in copies)
    side = SQUARE[device.type]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    multiplying = seconds([lambda: torch.mm(left, right, out=product)], **timing)
    return Ceilings(2 * size / copying, 2 * side**3 / multiplying)


def step_floor(weight_bytes: int, kv_bytes: int, ceilings: Ceilings) -> float:
    """Seconds to read the weights of a step and its sequence's keys and values once."""
    return (weight_bytes + kv_bytes) / ceilings.bytes
