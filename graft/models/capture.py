"""CUDA graph capture."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")
Pool = tuple[int, int]  # torch's handle of the memory that graphs share


def captured(
    compute: Callable[[], Result], device: torch.device, pool: Pool | None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of `compute`, in a shared memory pool if given, and the tensors of its result.

    `compute` runs once before the capture: compilation, handles and workspaces are not captured.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        compute()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # "thread_local": other threads may use the device meanwhile.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = compute()
    return graph, result


def reason(error: RuntimeError) -> str:
    """Why a capture failed, in one line."""
    return str(error).splitlines()[0][:200]
