"""`graft simulate` with the drafts of networks that `python -m benchmarks trace` recorded."""

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.decode.traces import TracedNetworks, read_traces
from benchmarks.settings import option
from graft.bench.simulate.costs import RECORDED
from graft.bench.simulate.run import Simulation, simulate
from graft.bench.simulate.tables import tables


@dataclass(frozen=True, kw_only=True)
class SimulateSettings:
    """Replay recorded outputs through drafters, and print tables as Markdown."""

    files: tuple[Path, ...] = option((), "result files of kind decode, with prompts")
    traces: tuple[Path, ...] = option((), "from python -m benchmarks trace")
    draft: tuple[str, ...] = option(("eagle2",), "presets of the traces, and copying ones")
    costs: tuple[str, ...] = option((RECORDED,), "recorded, reference, a file or SHAPE@HARDWARE")
    batch: tuple[int, ...] = option((1,), "prompts at a time")


def simulate_traces(settings: SimulateSettings) -> None:
    """Print the tables."""
    simulation = Simulation(
        files=settings.files,
        drafts=settings.draft,
        costs=settings.costs,
        batches=settings.batch,
    )
    done = simulate(
        simulation,
        lambda cells: TracedNetworks([read_traces(each, cells) for each in settings.traces]),
    )
    sys.stdout.write("\n\n".join(table.as_markdown() for table in tables(done)) + "\n")
