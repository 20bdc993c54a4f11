"""Paper scale, as a projection: what drafting from a short context would gain large models.

    python -m benchmarks.kernels.projection --out projection.jsonl --acceptance ours=0.62  # GPU
    python -m benchmarks.kernels.projection --from projection.jsonl --plot projection.png

Step times are measured, with random weights and Graft's own kernels (captured graphs): of one node
and of a chain on top of a long context, and of one node on top of a short one. A few layers of a
shape are measured twice, L1 and L2 of them, and scaled linearly to all L:

    layer = (t(L2) - t(L1)) / (L2 - L1)      rest (head, embedding, launch) = t(L1) - L1 layer
    t(L) = rest + L layer

A round drafts gamma tokens one by one on s tokens of retrieved text and checks them in one step on
top of all c tokens. RAPID states accepted / drafted = r at gamma 10. With every draft kept with the
same probability a, given that those before it were, r = (a + a^2 + ... + a^gamma) / gamma; a is
solved from r at gamma 10, and for any gamma

    tokens of a round = 1 + a + a^2 + ... + a^gamma
    speed-up = tokens t(1 node, c) / (gamma t'(1 node, s) + t(gamma + 1 nodes, c))

with t of the target and t' of the drafter. Prefill, retrieval and sampling are left out, and a
model that needs several GPUs is taken as if it lay on one: speed-ups are bounds, not results.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.kernels.settings import KernelPlan
from benchmarks.kernels.shapes import with_layers
from benchmarks.kernels.steps import Stepper, fastest
from benchmarks.report import Table
from graft.bench.result_file import Results, new_header, open_results, read_results
from graft.bench.simulate.shapes import Shape, read_shape
from graft.bench.sizes import short, size
from graft.errors import GraftError, InputError
from graft.models.load import find_device

GAMMA = 10  # at which acceptance is stated
PAPER = {"paper, SD": 0.65, "paper, RAPID": 0.80}  # Fig. 3: 60 to 70 % and 75 to 85 %
# Table 1, LongBench v2 at about 120K, by (target, drafter): what the paper measured
REPORTED = {
    ("llama-8b", "llama-8b"): "RAPID 2.10, SD 1.63",
    ("llama-8b", "llama-70b"): "RAPID 1.14",
    ("llama-70b", "llama-70b"): "RAPID 2.69",
}
Key = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of a step of so many layers of a shape."""

    shape: str
    layers: int
    context: int
    nodes: int
    seconds: float

    @property
    def key(self) -> Key:
        """What makes it unique in its file."""
        return self.shape, self.layers, self.context, self.nodes


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: two shapes, the smaller first."""

    shapes: Sequence[Shape]
    layers: tuple[int, int]
    contexts: Sequence[int]
    shorts: Sequence[int]
    gammas: Sequence[int]
    dtype: str
    device: str
    repeats: int

    def __post_init__(self) -> None:
        few, more = self.layers
        if not 1 <= few < more or any(more > shape.layers for shape in self.shapes):
            raise InputError("--layers takes two numbers, ascending, that every shape has")
        if min((*self.contexts, *self.shorts, *self.gammas), default=0) < 1:
            raise InputError("--contexts, --shorts and --gammas take numbers from 1 on")

    @property
    def points(self) -> list[tuple[int, int]]:
        """(context, nodes) that every shape is measured at."""
        nodes = sorted({1, *(gamma + 1 for gamma in self.gammas)})
        return [*product(sorted(self.contexts), nodes), *((each, 1) for each in self.shorts)]


@dataclass(frozen=True, slots=True)
class Projection:
    """A drafter on `short` tokens for a target on `context`; seconds of whole models."""

    target: str
    drafter: str
    context: int
    short: int
    gamma: int
    plain: float
    draft: float
    check: float

    def speed_up(self, rate: float) -> float:
        """At so many accepted of all drafted tokens, as stated for a gamma of 10."""
        tokens = 1 + accepted_tokens(kept_probability(rate, GAMMA), self.gamma)
        return tokens * self.plain / (self.gamma * self.draft + self.check)


def accepted_tokens(kept: float, gamma: int) -> float:
    """Expected accepted drafts of a chain: kept + kept^2 + ... + kept^gamma."""
    return sum(kept**place for place in range(1, gamma + 1))


def kept_probability(rate: float, gamma: int) -> float:
    """The probability of each draft, by halving, that gives accepted / drafted = rate."""
    if not 0 <= rate <= 1:
        raise InputError(f"an acceptance rate is from 0 to 1, not {rate}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if accepted_tokens(middle, gamma) < rate * gamma:
            low = middle
        else:
            high = middle
    return high


def whole(
    steps: dict[Key, float], shape: Shape, layers: tuple[int, int], context: int, nodes: int
) -> float:
    """Seconds of a step of all layers, from those of a few."""
    few, more = layers
    first, second = (steps[shape.name, each, context, nodes] for each in layers)
    layer = (second - first) / (more - few)
    return first - few * layer + shape.layers * layer


def projections(plan: Plan, steps: dict[Key, float]) -> list[Projection]:
    """Every target with every drafter."""

    def seconds(shape: Shape, context: int, nodes: int) -> float:
        return whole(steps, shape, plan.layers, context, nodes)

    return [
        Projection(
            target.name,
            drafter.name,
            context,
            short_context,
            gamma,
            plain=seconds(target, context, 1),
            draft=seconds(drafter, short_context, 1),
            check=seconds(target, context, gamma + 1),
        )
        for target, drafter in product(plan.shapes, plan.shapes)
        for context, short_context, gamma in product(plan.contexts, plan.shorts, plan.gammas)
    ]


def measure(plan: Plan, known: dict[Key, float]) -> Iterator[Step]:
    """What is not known yet, model by model."""
    for shape, layers in product(plan.shapes, plan.layers):
        left = [point for point in plan.points if (shape.name, layers, *point) not in known]
        if not left:
            continue
        sys.stderr.write(f"{shape.name}, {layers} layers: {len(left)} steps\n")
        settings = KernelPlan(
            shape=with_layers(shape, layers),
            contexts=[context for context, _ in plan.points],
            nodes=[nodes for _, nodes in plan.points],
            dtype=plan.dtype,
            device=find_device(plan.device),
            parts=("step",),
            repeats=plan.repeats,
        )
        stepper = Stepper.open(settings, fastest)
        for context, nodes in left:
            taken, _ = stepper.time(context, nodes)
            yield Step(shape.name, layers, context, nodes, taken)
        del stepper


def steps_of(results: Results) -> dict[Key, float]:
    """Seconds of all steps of a file."""
    names = ("shape", "layers", "context", "nodes")
    return {tuple(row[name] for name in names): row["seconds"] for row in results.rows}


def run(plan: Plan, out: Path) -> Results:
    """Measure what the file lacks, each step written at once."""
    settings = {
        "shapes": [asdict(shape) for shape in plan.shapes],
        "dtype": plan.dtype,
        "layers": list(plan.layers),
        "contexts": list(plan.contexts),
        "shorts": list(plan.shorts),
        "gammas": list(plan.gammas),
        "weights": "random",
    }
    with open_results(out) as file:
        known = steps_of(file.results)
        file.begin(new_header("projection", settings))
        for step in measure(plan, known):
            file.row(asdict(step))
        return file.results


def plan_of(settings: dict[str, Any]) -> Plan:
    """What the last run of a file measured."""
    return Plan(
        shapes=[Shape(**shape) for shape in settings["shapes"]],
        layers=tuple(settings["layers"]),
        contexts=settings["contexts"],
        shorts=settings["shorts"],
        gammas=settings["gammas"],
        dtype=settings["dtype"],
        device="cpu",
        repeats=1,
    )


def table(found: Results, rates: dict[str, float]) -> str:
    """All projections as one table."""
    header, where = found.header, _where(found)
    names = ["target", "drafter", "context", "drafter reads", "gamma", "plain ms", "draft ms"]
    names += ["check ms", *(f"{name} {rate:.0%}" for name, rate in rates.items()), "paper, ~120K"]
    rows = [
        [
            each.target,
            each.drafter,
            short(each.context),
            short(each.short),
            str(each.gamma),
            *(f"{1000 * seconds:.2f}" for seconds in (each.plain, each.draft, each.check)),
            *(f"{each.speed_up(rate):.2f}" for rate in rates.values()),
            REPORTED.get((each.target, each.drafter), "–"),
        ]
        for each in projections(plan_of(header.settings), steps_of(found))
    ]
    few, more = header.settings["layers"]
    title = (
        f"projection, not a measurement: random weights, {few} and {more} layers measured on "
        f"{where} in {header.settings['dtype']} and scaled to all, {header.date[:10]}"
    )
    return Table(title, names, rows, left=2).as_markdown()


def plot(found: Results, rates: dict[str, float], path: Path) -> None:
    """Speed-up against acceptance, a panel for every target and drafter."""
    from matplotlib.figure import Figure

    plan = plan_of(found.header.settings)
    gamma, shortest = max(plan.gammas), min(plan.shorts)
    shown = [
        p for p in projections(plan, steps_of(found)) if (p.gamma, p.short) == (gamma, shortest)
    ]
    pairs = list(dict.fromkeys((each.target, each.drafter) for each in shown))
    figure = Figure(figsize=(5 * len(plan.shapes), 4 * len(plan.shapes)), layout="constrained")
    panels = figure.subplots(len(plan.shapes), len(plan.shapes), squeeze=False).ravel()
    every = [place / 100 for place in range(101)]
    for panel, pair in zip(panels, pairs, strict=True):
        for each in shown:
            if (each.target, each.drafter) == pair:
                gains = [each.speed_up(rate) for rate in every]
                panel.plot(every, gains, label=f"context {short(each.context)}")
        for name, rate in rates.items():
            panel.axvline(rate, color="grey", linewidth=0.8, linestyle=":")
            panel.annotate(name, (rate, 0.02), rotation=90, fontsize=7, ha="right", va="bottom")
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_title(f"{pair[0]}, drafted by {pair[1]} on {short(shortest)}", fontsize=9)
        panel.set_xlabel(f"accepted / drafted at gamma {GAMMA}")
        panel.set_ylabel("times as fast as plain")
        panel.legend(fontsize=8, frameon=False, loc="upper left")
    title = f"Projection from step times with random weights on {_where(found)}"
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120)


def _where(found: Results) -> str:
    machine = found.header.hardware
    return ", ".join(machine.get("gpus") or [machine.get("cpu", "")])


def main() -> int:
    """Measure, print, draw; the exit code."""
    chosen = _options().parse_args()
    try:
        rates = {**PAPER, **dict(_rate(text) for text in chosen.acceptance)}
        if chosen.source:
            found = read_results(chosen.source)
        else:
            found = run(_plan(chosen), chosen.out)
        print(table(found, rates))
        if chosen.plot:
            plot(found, rates, chosen.plot)
    except GraftError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _plan(chosen: argparse.Namespace) -> Plan:
    sizes = {
        name: _sizes(getattr(chosen, name)) for name in ("layers", "contexts", "shorts", "gammas")
    }
    if len(sizes["layers"]) != 2:
        raise InputError("--layers takes two numbers, such as 2,6")
    return Plan(
        shapes=[read_shape(name) for name in chosen.shapes.split(",")],
        dtype=chosen.dtype,
        device=chosen.device,
        repeats=chosen.repeats,
        **sizes,
    )


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(size(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is no list of whole numbers such as 32k,128k") from None


def _rate(text: str) -> tuple[str, float]:
    name, _, rate = text.rpartition("=")
    try:
        return name or "ours", float(rate)
    except ValueError:
        raise InputError(f"--acceptance is NAME=RATE such as ours=0.62, not {text!r}") from None


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--shapes", default="llama-8b,llama-70b", help="see python -m benchmarks kernels"
    )
    options.add_argument("--layers", default="2,6", help="two numbers of layers to measure")
    options.add_argument("--contexts", default="32k,128k", help="of the target")
    options.add_argument("--shorts", default="4k,8k", help="of the drafter")
    options.add_argument("--gammas", default="4,10", help="drafted tokens of a step")
    options.add_argument("--acceptance", action="append", default=[], metavar="NAME=RATE")
    options.add_argument("--dtype", default="bf16")
    options.add_argument("--device", default="auto")
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument("--out", type=Path, default=Path("results/projection.jsonl"))
    options.add_argument("--from", type=Path, dest="source", help="print these, measure nothing")
    options.add_argument("--plot", type=Path)
    return options


if __name__ == "__main__":
    sys.exit(main())
