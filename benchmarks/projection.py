"""Paper scale, as a projection: what drafting from a short context would gain large models.

    python benchmarks/projection.py --out projection.jsonl --acceptance ours=0.62   # on the GPU
    python benchmarks/projection.py --from projection.jsonl --plot projection.png   # anywhere

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
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from graft.bench import about
from graft.bench.kernels.settings import KernelSettings
from graft.bench.kernels.shapes import Shape, read_shape
from graft.bench.kernels.steps import Stepper, fastest
from graft.bench.records import held, read_rows, write_row
from graft.bench.sizes import short, size
from graft.bench.tables import markdown_table
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
class Asked:
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


def projections(asked: Asked, steps: dict[Key, float]) -> list[Projection]:
    """Every target with every drafter."""

    def seconds(shape: Shape, context: int, nodes: int) -> float:
        return whole(steps, shape, asked.layers, context, nodes)

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
        for target, drafter in product(asked.shapes, asked.shapes)
        for context, short_context, gamma in product(asked.contexts, asked.shorts, asked.gammas)
    ]


def measure(asked: Asked, known: dict[Key, float]) -> Iterator[Step]:
    """What is not known yet, model by model."""
    for shape, layers in product(asked.shapes, asked.layers):
        left = [point for point in asked.points if (shape.name, layers, *point) not in known]
        if not left:
            continue
        sys.stderr.write(f"{shape.name}, {layers} layers: {len(left)} steps\n")
        settings = KernelSettings(
            shape=shape.with_layers(layers),
            contexts=[context for context, _ in asked.points],
            nodes=[nodes for _, nodes in asked.points],
            dtype=asked.dtype,
            device=find_device(asked.device),
            parts=("steps",),
            repeats=asked.repeats,
        )
        stepper = Stepper.open(settings, fastest)
        for context, nodes in left:
            taken, _ = stepper.time(context, nodes)
            yield Step(shape.name, layers, context, nodes, taken)
        del stepper


class File:
    """The lines of a file: one header per run, then steps."""

    def __init__(self) -> None:
        self.headers: list[dict[str, Any]] = []
        self.steps: dict[Key, float] = {}

    def take(self, row: dict[str, Any]) -> None:
        """One line."""
        kind = row.pop("record")
        if kind == "projection":
            self.headers.append(row)
        elif kind == "step":
            step = Step(**row)
            self.steps[step.key] = step.seconds
        else:
            raise ValueError(kind)

    def same(self, header: dict[str, Any]) -> None:
        """Refuse lines of another machine or another model."""
        for before in self.headers:
            for name in ("gpus", "dtype", "shapes"):
                if before[name] != header[name]:
                    raise InputError(
                        f"the file was measured with {name} {before[name]}, not {header[name]}; "
                        "name another --out"
                    )


def run(asked: Asked, out: Path) -> File:
    """Measure what the file lacks, each step written down at once."""
    header = {
        "date": _now(),
        "commit": about.commit(),
        "versions": about.versions(),
        "gpus": about.hardware()["gpus"],
        "cpu": about.hardware()["cpu"],
        "dtype": asked.dtype,
        "shapes": [asdict(shape) for shape in asked.shapes],
        "layers": list(asked.layers),
        "contexts": list(asked.contexts),
        "shorts": list(asked.shorts),
        "gammas": list(asked.gammas),
        "weights": "random",
    }
    found = File()
    with held(out) as file:
        read_rows(out, found.take)
        found.same(header)
        write_row(file, out, {"record": "projection", **header})
        found.headers.append(header)
        for step in measure(asked, found.steps):
            write_row(file, out, {"record": "step", **asdict(step)})
            found.steps[step.key] = step.seconds
    return found


def asked_of(header: dict[str, Any]) -> Asked:
    """What a file's last run measured."""
    return Asked(
        shapes=[Shape(**shape) for shape in header["shapes"]],
        layers=tuple(header["layers"]),
        contexts=header["contexts"],
        shorts=header["shorts"],
        gammas=header["gammas"],
        dtype=header["dtype"],
        device="cpu",
        repeats=1,
    )


def table(found: File, rates: dict[str, float]) -> str:
    """All projections as one table."""
    header = found.headers[-1]
    where = ", ".join(header["gpus"]) or header["cpu"]
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
        for each in projections(asked_of(header), found.steps)
    ]
    few, more = header["layers"]
    title = (
        f"projection, not a measurement: random weights, {few} and {more} layers measured on "
        f"{where} in {header['dtype']} and scaled to all, {header['date'][:10]}"
    )
    return markdown_table(title, names, rows)


def plot(found: File, rates: dict[str, float], path: Path) -> None:
    """Speed-up against acceptance, a panel for every target and drafter."""
    from matplotlib.figure import Figure

    from graft.bench.plot import save

    asked = asked_of(found.headers[-1])
    gamma, shortest = max(asked.gammas), min(asked.shorts)
    shown = [p for p in projections(asked, found.steps) if (p.gamma, p.short) == (gamma, shortest)]
    pairs = list(dict.fromkeys((each.target, each.drafter) for each in shown))
    figure = Figure(figsize=(5 * len(asked.shapes), 4 * len(asked.shapes)), layout="constrained")
    panels = figure.subplots(len(asked.shapes), len(asked.shapes), squeeze=False).ravel()
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
    where = ", ".join(found.headers[-1]["gpus"]) or found.headers[-1]["cpu"]
    figure.suptitle(f"Projection from step times with random weights on {where}", fontsize=9)
    save(figure, path, dpi=120)


def main() -> int:
    """Measure if asked to, print, draw; the exit code."""
    chosen = _options().parse_args()
    try:
        rates = {**PAPER, **dict(_rate(text) for text in chosen.acceptance)}
        if chosen.source:
            found = File()
            read_rows(chosen.source, found.take)
            if not found.headers:
                raise InputError(f"{chosen.source} was not written by this script")
        else:
            found = run(_asked(chosen), chosen.out)
        print(table(found, rates))
        if chosen.plot:
            plot(found, rates, chosen.plot)
    except GraftError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _asked(chosen: argparse.Namespace) -> Asked:
    sizes = {
        name: _sizes(getattr(chosen, name)) for name in ("layers", "contexts", "shorts", "gammas")
    }
    if len(sizes["layers"]) != 2:
        raise InputError("--layers takes two numbers, such as 2,6")
    return Asked(
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


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--shapes", default="llama-8b,llama-70b", help="see graft bench kernels")
    options.add_argument("--layers", default="2,6", help="two numbers of layers to measure")
    options.add_argument("--contexts", default="32k,128k", help="that the target reads")
    options.add_argument("--shorts", default="4k,8k", help="that the drafter reads")
    options.add_argument("--gammas", default="4,10", help="drafted tokens of a round")
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
