"""Figures of kernels as a run would write them, for tables and plots."""

from dataclasses import asdict

from graft.bench.kernels.records import Figure, Figures, MemoryUse, open_journal
from graft.bench.kernels.shapes import KNOWN


def header(**changes):
    given = {
        "date": "2026-11-15T12:00:00+00:00",
        "commit": "abc",
        "command": [],
        "versions": {"torch": "2.11.0"},
        "hardware": {"cpu": "a CPU", "gpus": ["a GPU"]},
        "fixed": {
            "shape": asdict(KNOWN["llama-8b"].with_layers(16)),
            "dtype": "bf16",
            "device": "cuda",
            "cpu": "a CPU",
        },
        "ceilings": {"bytes": 4e12, "flops": 7e14},
    }
    return {**given, **changes}


def figure(part, what, nodes, seconds, **changes):
    given = {"context": 4096, "floor": 0.001, "session": 0, "seconds": seconds}
    return Figure(part=part, what=what, nodes=nodes, **{**given, **changes})


def some_figures():
    """Attention and steps at two points, one kernel that refused, the memory."""
    measured = [
        figure("attention", "triton", 1, 0.0001, ours=True, error=0.002, floor=0.00005),
        figure("attention", "triton", 8, 0.0002, ours=True, error=0.004, floor=0.00005),
        figure("attention", "sdpa cudnn, mask", 1, 0.003, floor=0.00005, note="packed"),
        figure("attention", "sdpa cudnn, mask", 8, None, floor=0.00005, note="no such kernel"),
        figure("step", "graphs", 1, 0.004, ours=True, device_seconds=0.0038),
        figure("step", "graphs", 8, 0.005, ours=True, device_seconds=0.0048),
        figure("step", "eager", 8, 0.03, device_seconds=0.02),
    ]
    memory = MemoryUse(
        context=4096, nodes=8, weights=16 << 30, cache=512 << 20, logits=4 << 20, session=0,
        rest=100 << 20, reserved=17 << 30,
    )  # fmt: skip
    return Figures([header()], {each.key: each for each in measured}, memory)


def save(figures, path):
    """As a run writes them."""
    with open_journal(path) as journal:
        journal.header(figures.sessions[0])
        for each in figures.figures.values():
            journal.figure(each)
        journal.memory(figures.memory)
