"""Capturing what a GPU does as a graph that can be replayed."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")
Pool = tuple[int, int]  # torch's handle of the memory that graphs share


def captured(
    compute: Callable[[], Result], device: torch.device, pool: Pool | None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of `compute`, in the pool of others if there are any, and where its result will be.

    It is run once before: whatever is done once only (compiling, handles, workspaces) must not be
    captured.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        compute()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # What other threads do with the device meanwhile is no business of this graph.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = compute()
    return graph, result


def reason(error: RuntimeError) -> str:
    """Why nothing was captured, for one line of a log."""
    return str(error).splitlines()[0][:200]
