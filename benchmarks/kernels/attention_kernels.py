"""Attention kernels to compare: those of Graft, and torch's scaled dot-product attention.

SDPA gets grouped queries in two forms, with `enable_gqa` and with the queries of a group side by
side as more rows of its KV head; both share keys without copying them, the faster one counts.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.kernels.problem import Problem
from benchmarks.kernels.settings import KernelPlan
from benchmarks.kernels.timing import Call
from graft.kernels.tree_attention_torch import tree_attention as torch_attention

Prepare = Callable[[Problem], Call]


@dataclass(frozen=True, slots=True)
class Kernel:
    """`forms` are calls of the same kernel; each prepares a problem and returns the call to time.

    `ours` is used by the forward; without `masked` every node sees the whole tree, which is not
    what a tree needs; `captured` calls can be recorded; `scores` are held whole in memory.
    """

    name: str
    forms: dict[str, Prepare]
    ours: bool = False
    masked: bool = True
    captured: bool = True
    scores: bool = False


def kernels(plan: KernelPlan) -> list[Kernel]:
    """All that can run on the device, our own first."""
    on_gpu = plan.device.type == "cuda"
    return [*(_ours_on_gpu() if on_gpu else _ours_on_cpu(plan)), *_sdpa(on_gpu=on_gpu)]


def _ours_on_gpu() -> list[Kernel]:
    try:
        from graft.kernels.split_attention_triton import tree_attention
    except ImportError:
        return [_plain_torch(ours=True)]
    return [Kernel("triton", {"": partial(_attend, tree_attention)}, ours=True)]


def _ours_on_cpu(plan: KernelPlan) -> list[Kernel]:
    if plan.dtype != "fp32" or plan.shape.head_size % 16:  # what panels are made of
        return [_plain_torch(ours=True)]
    from benchmarks.kernels.panels import panel_attention

    return [Kernel("panels", {"": panel_attention}, ours=True), _plain_torch(ours=False)]


def _plain_torch(*, ours: bool) -> Kernel:
    """The definition: copies the mask to the device at every call, so it cannot be recorded."""
    prepare = partial(_attend, torch_attention)
    return Kernel("torch", {"": prepare}, ours=ours, captured=False, scores=True)


def _attend(attention: Callable[..., Tensor], problem: Problem) -> Call:
    return lambda: attention(
        problem.query, problem.keys, problem.values, problem.layout, scale=problem.scale
    )


def _sdpa(*, on_gpu: bool) -> list[Kernel]:
    masked = [("efficient", SDPBackend.EFFICIENT_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)]
    if not on_gpu:
        masked = [("flash", SDPBackend.FLASH_ATTENTION)]
    found = [Kernel("sdpa flash, no mask", _forms(SDPBackend.FLASH_ATTENTION, None), masked=False)]
    found += [Kernel(f"sdpa {name}, mask", _forms(kind, Problem.bias)) for name, kind in masked]
    return [*found, Kernel("sdpa math, mask", _forms(SDPBackend.MATH, Problem.bias), scores=True)]


def _forms(backend: SDPBackend, bias: Callable[[Problem], Tensor] | None) -> dict[str, Prepare]:
    return {
        "enable_gqa": partial(_gqa, backend, bias),
        "packed": partial(_packed, backend, bias),
    }


def _gqa(backend: SDPBackend, bias: Callable | None, problem: Problem) -> Call:
    mask = None if bias is None else bias(problem)[None, None]
    keys, values = problem.keys[None], problem.values[None]
    grouped = problem.query.shape[1] != problem.keys.shape[0]

    def call() -> Tensor:
        query = problem.query.transpose(0, 1)[None]  # [1, H, N, D]
        with sdpa_kernel(backend):
            mixed = F.scaled_dot_product_attention(
                query, keys, values, mask, scale=problem.scale, enable_gqa=grouped
            )
        return mixed[0].transpose(0, 1)

    return call


def _packed(backend: SDPBackend, bias: Callable | None, problem: Problem) -> Call:
    nodes, heads, size = problem.query.shape
    groups = heads // problem.keys.shape[0]
    mask = None if bias is None else bias(problem).repeat_interleave(groups, 0)[None, None]
    keys, values = problem.keys[None], problem.values[None]

    def call() -> Tensor:
        query = problem.query.view(nodes, -1, groups, size).transpose(0, 1)  # [K, N, G, D]
        with sdpa_kernel(backend):
            mixed = F.scaled_dot_product_attention(
                query.reshape(1, -1, nodes * groups, size), keys, values, mask, scale=problem.scale
            )
        return mixed.view(-1, nodes, groups, size).transpose(0, 1).reshape(nodes, heads, size)

    return call


def memory_needed(kernel: Kernel, problem: Problem) -> int:
    """Bytes, about, that a kernel takes besides keys and values."""
    return scores_needed(problem) if kernel.scores else 0


def scores_needed(problem: Problem) -> int:
    """Scores in fp32 a few times over, and keys and values in fp32 for every head."""
    nodes, heads, size = problem.query.shape
    rows = problem.keys.shape[1]
    return 4 * (4 * heads * nodes * rows + 2 * heads * rows * size)


SILENT = ("not used because", "runtime disabled")  # warnings of unused backends


def refusal(error: Exception, caught: list[warnings.WarningMessage]) -> str:
    """Why SDPA refuses a problem: the reason is in its warnings, not in its error."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    reasons = [str(each.message).split("(Triggered")[0] for each in caught]
    reasons = [each for each in reasons if not any(words in each for words in SILENT)]
    first = (reasons or [str(error) or type(error).__name__])[0]
    return " ".join(first.split())[:160]
