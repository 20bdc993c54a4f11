"""Which modules of transformers compute what a kernel of ours does, found out on random numbers."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

ROUNDINGS = 4  # that a kernel may differ by, relative to the largest element
ROWS = 4  # of random numbers

# A kernel's RMS norm of x [..., E]: gain [E], epsilon, x
Norm = Callable[[Tensor, float, Tensor], Tensor]


def rms_norm_of(module: nn.Module, norm: Norm) -> Callable[[Tensor], Tensor] | None:
    """An RMS norm by the kernel `norm`; its gain is the module's weight or one more."""
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or epsilon is None or weight is None:
        return None
    x = random_like(weight, ROWS, weight.shape[-1])
    with torch.no_grad():
        expected = module(x)
        for gain in (weight.detach(), 1 + weight.detach().float()):
            if weight.dim() == 1 and close(norm(gain, epsilon, x), expected):
                return partial(norm, gain, epsilon)
    return None


def random_like(like: Tensor, *shape: int) -> Tensor:
    """Random numbers of the same dtype and device."""
    generator = torch.Generator(like.device).manual_seed(0)
    return torch.randn(*shape, generator=generator, device=like.device).to(like.dtype)


def close(found: Tensor, expected: Tensor) -> bool:
    """Equal up to a few roundings."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    error = (found.double() - expected.double()).abs().max()
    largest = float(expected.double().abs().max())
    return float(error) <= ROUNDINGS * torch.finfo(expected.dtype).eps * largest
