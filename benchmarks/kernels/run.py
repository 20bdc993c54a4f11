"""Measure attention kernels and whole steps, point by point; every row is written at once."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass

import torch

from benchmarks.kernels.attention import measure_point
from benchmarks.kernels.attention_kernels import Kernel, kernels
from benchmarks.kernels.floor import measure_ceilings, step_floor
from benchmarks.kernels.settings import KernelOptions, KernelPlan
from benchmarks.kernels.steps import Stepper, eager, fastest, refuse_too_large
from graft.bench.measure import Progress
from graft.bench.result_file import ResultFile, Row, new_header
from graft.bench.simulate.shapes import Ceilings, attention_floor

SETTINGS = KernelOptions
LOGIT = 4  # bytes
GRAFT, EAGER = "graft", "eager"  # forwards
Point = tuple[int, int]  # context, nodes


def run(options: KernelOptions, file: ResultFile, progress: Progress) -> bool:
    """Everything that the file does not have yet."""
    plan = options.plan()
    points, steps = attention_left(plan, file), steps_left(plan, file)
    left = sum(map(len, [*points.values(), *steps.values()]))
    progress.begin(left, 0)
    if not left:
        return True
    if steps:
        refuse_too_large(plan)
    _say_what_is_missing(plan, points, progress)
    with torch.cuda.device(plan.device) if plan.device.type == "cuda" else nullcontext():
        progress.show("copy and matrix product: the ceilings")
        ceilings = measure_ceilings(plan)
        file.begin(new_header(options.kind, _about(plan, ceilings)))
        measuring = _Measuring(plan, file, progress, ceilings)
        measuring.attention(points)
        for forward, wanted in steps.items():
            measuring.steps(forward, wanted)
    return True


def attention_left(plan: KernelPlan, file: ResultFile) -> dict[Point, list[Kernel]]:
    """The kernels that each point lacks."""
    if "attention" not in plan.parts:
        return {}
    lacking = {
        (context, nodes): [
            each
            for each in kernels(plan)
            if not file.results.has(_point("attention", each.name, context, nodes))
        ]
        for context in plan.contexts
        for nodes in plan.nodes
    }
    return {point: some for point, some in lacking.items() if some}


def steps_left(plan: KernelPlan, file: ResultFile) -> dict[str, list[Point]]:
    """The points that Graft's forward and the eager one lack."""
    if "step" not in plan.parts or not plan.shape.layers:
        return {}
    done = {
        (row["ours"], row["context"], row["nodes"])
        for row in file.results.rows
        if row["part"] == "step" and "seconds" in row
    }
    every = [(c, n) for c in plan.contexts for n in sorted({1, *plan.nodes})]
    lacking = {
        GRAFT: [point for point in every if (True, *point) not in done],
        EAGER: [point for point in eager_points(plan) if (False, *point) not in done],
    }
    return {forward: some for forward, some in lacking.items() if some}


def eager_points(plan: KernelPlan) -> list[Point]:
    """A few: one, some and the most nodes at the shortest and the longest context."""
    contexts, nodes = plan.contexts, plan.nodes
    some = sorted({1, nodes[len(nodes) // 2], nodes[-1]})
    return [(c, n) for c in sorted({contexts[0], contexts[-1]}) for n in some]


def _point(part: str, variant: str, context: int, nodes: int) -> Row:
    return {"part": part, "variant": variant, "context": context, "nodes": nodes}


def _say_what_is_missing(
    plan: KernelPlan, points: dict[Point, list[Kernel]], progress: Progress
) -> None:
    ours = {kernel.name for lacking in points.values() for kernel in lacking if kernel.ours}
    if ours == {"torch"}:
        progress.say("no fast kernel runs here: Graft uses the plain torch version")
    if "step" in plan.parts and not plan.shape.layers:
        progress.say(f"no whole steps: {plan.shape.name} has heads alone")


def _about(plan: KernelPlan, ceilings: Ceilings) -> dict[str, object]:
    return {
        "shape": plan.shape.name,
        "dtype": plan.dtype,
        "device": plan.device.type,
        "threads": torch.get_num_threads(),
        "layers": plan.shape.layers,
        "of_layers": plan.of_layers,
        "weights": "random",
        "repeats": plan.repeats,
        "copy_gb_per_second": round(ceilings.bytes / 1e9),
        "tflops": round(ceilings.flops / 1e12, 4),
    }


@dataclass(slots=True)
class _Measuring:
    plan: KernelPlan
    file: ResultFile
    progress: Progress
    ceilings: Ceilings

    def attention(self, left: dict[Point, list[Kernel]]) -> None:
        """One layer alone."""
        shape, itemsize = self.plan.shape, self.plan.itemsize
        for (context, nodes), lacking in left.items():
            self.progress.show(f"attention: context {context}, nodes {nodes}")
            floor = attention_floor(shape, context, nodes, itemsize, self.ceilings)
            for kernel, timed in measure_point(lacking, self.plan, context, nodes):
                row = _point("attention", kernel.name, context, nodes)
                about = {"ours": kernel.ours, "floor_seconds": floor}
                self.file.row(row | about | asdict(timed))
                self.progress.advance()

    def steps(self, forward: str, points: list[Point]) -> None:
        """Whole steps of one forward, which is freed before the next is loaded."""
        self.progress.show(f"{forward} steps: random weights")
        stepper = Stepper.open(self.plan, fastest if forward == GRAFT else eager)
        if forward == GRAFT:
            self._memory(stepper)
        for context, nodes in points:
            self.progress.show(f"{stepper.name} step: context {context}, nodes {nodes}")
            floor = step_floor(*stepper.read_bytes(context, nodes), self.ceilings)
            row = _point("step", stepper.name, context, nodes)
            about = {"ours": forward == GRAFT, "floor_seconds": floor}
            self.file.row(row | about | _timed(stepper, context, nodes))
            self.progress.advance()

    def _memory(self, stepper: Stepper) -> None:
        plan, used = self.plan, stepper.memory()
        nodes = max(plan.nodes)
        logits = nodes * plan.shape.vocabulary * LOGIT
        rest = None if used.peak is None else used.peak - used.weights - used.cache - logits
        sizes = {"weights": used.weights, "cache": used.cache, "logits": logits}
        sizes |= {"rest": rest, "reserved": used.reserved}
        named = {f"{name}_bytes": size for name, size in sizes.items()}
        row = _point("memory", stepper.name, max(plan.contexts), nodes)
        self.file.row(row | {"ours": True} | named)


def _timed(stepper: Stepper, context: int, nodes: int) -> Row:
    """The times of a step, or why there are none."""
    try:
        seconds, device_seconds = stepper.time(context, nodes)
    except torch.OutOfMemoryError:
        return {"error": "out of memory"}
    return {"seconds": seconds, "device_seconds": device_seconds}
