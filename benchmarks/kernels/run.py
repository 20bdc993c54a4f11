"""Measure what is asked for, point by point, and write every figure down at once."""

import datetime
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from graft.bench import about
from graft.bench.kernels.attention import measure_point
from graft.bench.kernels.floor import Ceilings, attention_floor, measure_ceilings, step_floor
from graft.bench.kernels.plan import OURS, Point, attention_left, steps_left
from graft.bench.kernels.records import Figure, Journal, MemoryUse
from graft.bench.kernels.rivals import Kernel
from graft.bench.kernels.settings import KernelSettings
from graft.bench.kernels.steps import Stepper, eager, fastest, refuse_too_large
from graft.bench.runner import Watch, refuse_mixing

LOGIT = 4  # bytes


def run(settings: KernelSettings, journal: Journal, watch: Watch) -> None:
    """Everything that the journal does not hold yet."""
    header = _header(settings)
    refuse_mixing(journal.path, journal.figures.sessions, header["fixed"])
    points, steps = attention_left(settings, journal.figures), steps_left(settings, journal.figures)
    left = sum(map(len, [*points.values(), *steps.values()]))
    if not left:
        watch.say(f"all of it stands in {journal.path}; name another --out to measure again")
        return
    if steps:
        refuse_too_large(settings)
    _say_what_is_missing(settings, points, watch)
    watch.begin(left, 0)
    on_gpu = settings.device.type == "cuda"
    with torch.cuda.device(settings.device) if on_gpu else nullcontext():
        watch.turn("copy and matrix product: the ceilings")
        ceilings = measure_ceilings(settings)
        session = Session(settings, journal, watch, ceilings, len(journal.figures.sessions))
        journal.header({**header, "ceilings": asdict(ceilings)})
        session.attention(points)
        for forward, wanted in steps.items():
            session.steps(forward, wanted)


def _say_what_is_missing(
    settings: KernelSettings, points: dict[Point, list[Kernel]], watch: Watch
) -> None:
    ours = {kernel.name for lacking in points.values() for kernel in lacking if kernel.ours}
    if ours == {"torch"}:
        watch.say("no faster kernel runs here: ours is the plain torch version")
    if "steps" in settings.parts and not settings.shape.layers:
        watch.say(f"no whole steps: {settings.shape.name} names heads alone")


def _header(settings: KernelSettings) -> dict[str, Any]:
    """`fixed` must be the same for all lines of a file, or they could not be compared."""
    machine, versions = about.hardware(), about.versions()
    try:
        versions["triton"] = version("triton")
    except PackageNotFoundError:
        pass
    fixed = {
        "shape": asdict(settings.shape),
        "dtype": settings.dtype,
        "device": settings.device.type,
        "threads": torch.get_num_threads(),
        "cpu": machine["cpu"],
        "gpus": machine["gpus"],
        **versions,
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": about.commit(),
        "command": sys.argv[1:],
        "versions": versions,
        "hardware": machine,
        "fixed": fixed,
        "repeats": settings.repeats,
        "weights": "random",
    }


@dataclass(slots=True)
class Session:
    """One run of the command; a file may hold several."""

    settings: KernelSettings
    journal: Journal
    watch: Watch
    ceilings: Ceilings
    number: int

    def attention(self, left: dict[Point, list[Kernel]]) -> None:
        """One layer alone."""
        shape, itemsize = self.settings.shape, self.settings.itemsize
        for (context, nodes), lacking in left.items():
            self.watch.turn(f"attention: context {context}, nodes {nodes}")
            floor = attention_floor(shape, context, nodes, itemsize, self.ceilings)
            for kernel, timed in measure_point(lacking, self.settings, context, nodes):
                self.journal.figure(
                    Figure(
                        part="attention",
                        what=kernel.name,
                        context=context,
                        nodes=nodes,
                        floor=floor,
                        session=self.number,
                        ours=kernel.ours,
                        **asdict(timed),
                    )
                )
                self.watch.advance()

    def steps(self, forward: str, points: list[Point]) -> None:
        """Whole steps of one forward, which is gone before the next is made."""
        self.watch.turn(f"{forward} steps: random weights")
        stepper = Stepper.open(self.settings, fastest if forward == OURS else eager)
        if forward == OURS:
            self._memory(stepper)
        for context, nodes in points:
            self.watch.turn(f"{stepper.name} step: context {context}, nodes {nodes}")
            self.journal.figure(
                Figure(
                    part="step",
                    what=stepper.name,
                    context=context,
                    nodes=nodes,
                    floor=step_floor(*stepper.read_bytes(context, nodes), self.ceilings),
                    session=self.number,
                    ours=forward == OURS,
                    **_timed(stepper, context, nodes),
                )
            )
            self.watch.advance()

    def _memory(self, stepper: Stepper) -> None:
        settings, used = self.settings, stepper.memory()
        nodes = max(settings.nodes)
        logits = nodes * settings.shape.vocabulary * LOGIT
        rest = None if used.peak is None else used.peak - used.weights - used.cache - logits
        self.journal.memory(
            MemoryUse(
                context=max(settings.contexts),
                nodes=nodes,
                weights=used.weights,
                cache=used.cache,
                logits=logits,
                session=self.number,
                rest=rest,
                reserved=used.reserved,
            )
        )


def _timed(stepper: Stepper, context: int, nodes: int) -> dict[str, Any]:
    """A step's times, or why there are none."""
    try:
        taken, worked = stepper.time(context, nodes)
    except torch.OutOfMemoryError:
        return {"note": "out of memory"}
    return {"seconds": taken, "device_seconds": worked}
