"""How fast it could be at best: two ceilings of the machine, measured, and what they allow.

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
    how = {"repeats": plan.repeats, "device": device}
    ways = (lambda: target.copy_(source), lambda: torch.neg(source, out=target))
    copying = min(seconds([way], **how) for way in ways)
    side = SQUARE[device.type]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    multiplying = seconds([lambda: torch.mm(left, right, out=product)], **how)
    return Ceilings(2 * size / copying, 2 * side**3 / multiplying)


def step_floor(weight_bytes: int, kv_bytes: int, ceilings: Ceilings) -> float:
    """Seconds to read the weights of a step and its sequence's keys and values once."""
    return (weight_bytes + kv_bytes) / ceilings.bytes
