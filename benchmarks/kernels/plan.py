"""What is left to measure: every point of attention and of steps that a file does not hold."""

from graft.bench.kernels.records import Figures
from graft.bench.kernels.rivals import Kernel, kernels
from graft.bench.kernels.settings import KernelSettings

Point = tuple[int, int]  # context, nodes
OURS, EAGER = "our", "eager"  # forwards


def attention_left(settings: KernelSettings, found: Figures) -> dict[Point, list[Kernel]]:
    """The kernels that each point lacks."""
    if "attention" not in settings.parts:
        return {}
    known = kernels(settings)
    lacking = {
        (context, nodes): [
            each for each in known if not found.done(("attention", each.name, context, nodes))
        ]
        for context in settings.contexts
        for nodes in settings.nodes
    }
    return {point: some for point, some in lacking.items() if some}


def steps_left(settings: KernelSettings, found: Figures) -> dict[str, list[Point]]:
    """The points that our forward and the eager one lack."""
    if "steps" not in settings.parts or not settings.shape.layers:
        return {}
    done = {
        (each.ours, each.context, each.nodes)
        for each in found.figures.values()
        if each.part == "step" and each.seconds is not None
    }
    lacking = {
        OURS: [point for point in step_points(settings) if (True, *point) not in done],
        EAGER: [point for point in eager_points(settings) if (False, *point) not in done],
    }
    return {forward: some for forward, some in lacking.items() if some}


def step_points(settings: KernelSettings) -> list[Point]:
    """Every point, and plain decoding at every context."""
    return [(c, n) for c in settings.contexts for n in sorted({1, *settings.nodes})]


def eager_points(settings: KernelSettings) -> list[Point]:
    """A few: one, some and most nodes at the shortest and the longest context."""
    contexts, nodes = settings.contexts, settings.nodes
    some = sorted({1, nodes[len(nodes) // 2], nodes[-1]})
    return [(c, n) for c in sorted({contexts[0], contexts[-1]}) for n in some]
