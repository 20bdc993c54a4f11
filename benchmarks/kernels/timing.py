"""Seconds of a call: on a GPU replayed from a CUDA graph between events, else by the clock."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

Call = Callable[[], object]
FEWEST = 8  # calls in a graph, so that starting it counts little


def seconds(
    calls: Sequence[Call], *, repeats: int, device: torch.device, captured: bool = True
) -> float:
    """Median seconds of one call, the calls taken in turns so that none finds its data cached.

    `captured`: the calls can be recorded in a CUDA graph, so launching them costs nothing.
    """
    if device.type != "cuda":
        return _by_clock(calls, repeats)
    turns = list(calls) * -(-FEWEST // len(calls))
    for call in calls:
        call()
    torch.cuda.synchronize(device)
    run = _recorded(turns).replay if captured else lambda: [call() for call in turns]
    run()
    return median(_between_events(run) for _ in range(repeats)) / len(turns)


def _by_clock(calls: Sequence[Call], repeats: int) -> float:
    for call in calls:
        call()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        for call in calls:
            call()
        taken.append((time.perf_counter() - start) / len(calls))
    return median(taken)


def _recorded(turns: Sequence[Call]) -> torch.cuda.CUDAGraph:
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # what a first call sets up must not be recorded
        for call in dict.fromkeys(turns):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in turns:
            call()
    return graph


def _between_events(run: Call) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def latency(step: Call, *, repeats: int, device: torch.device) -> tuple[float, float | None]:
    """Median seconds of a whole step as its caller waits for it, and those of the device alone.

    The second is None on a CPU, where the two are one.
    """
    for _ in range(3):  # the first may record a graph
        step()
    if device.type != "cuda":
        return _by_clock([step], repeats), None
    waited, worked = [], []
    for _ in range(repeats):
        torch.cuda.synchronize(device)
        begun = time.perf_counter()
        worked.append(_between_events(step))
        waited.append(time.perf_counter() - begun)
    return median(waited), median(worked)
