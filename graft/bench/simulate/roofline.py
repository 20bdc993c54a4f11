"""Step costs on other hardware, or for a model of another size.

A step reads its matrices once and multiplies every row by them; then every layer reads its keys and
values and multiplies by them. The longer one of reading and computing counts, and every layer adds
a constant (launches, waits):

    seconds(n rows, S tokens) = layers * overhead
                              + max(W w / bytes, 2 W n / flops)
                              + layers * max(2 K D (S + n) k / bytes, 4 n H D (S + n) / (a flops))

W weights of w bytes each (an input embedding of its own left out), K key-value heads, H heads of
size D, keys and values of k bytes. `bytes` and `flops` per second are what programs reach, not
those of data sheets; attention reaches a share `a` of them. The bound is 0.74 to 1.0 of the
measured step of a Llama-8B on an H200 (`python -m benchmarks kernels`), and 0.8 to 1.2 of that of
smollm2 on two cores.

A measured table of another size or machine (`like`) is scaled by the ratio of the two bounds, entry
by entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from graft.bench.simulate.shapes import KNOWN as SHAPES
from graft.bench.simulate.shapes import Ceilings, Shape, attention_floor, read_shape
from graft.errors import InputError
from graft.models.step_costs import GPU_LENGTHS, GPU_NODES, StepCosts

WEIGHT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}
SPELLED = "SHAPE@HARDWARE or SHAPE:DTYPE@HARDWARE, such as llama-8b@h200"
REACHED_BYTES, REACHED_FLOPS = 0.88, 0.75  # of a data sheet's, as measured on an H200
ATTENTION = 0.55  # of those flops that attention reaches there
LAUNCHES = 20e-6  # of a layer there, seconds


@dataclass(frozen=True, slots=True)
class Hardware:
    """Reached throughput, and the constant seconds of a layer."""

    ceilings: Ceilings
    overhead: float = LAUNCHES
    attention: float = ATTENTION


def _sheet(terabytes: float, teraflops: float) -> Hardware:
    """From a data sheet: 16-bit products with 32-bit sums, without sparsity."""
    return Hardware(Ceilings(terabytes * 1e12 * REACHED_BYTES, teraflops * 1e12 * REACHED_FLOPS))


HARDWARE: dict[str, Hardware] = {
    "neoverse-n1": Hardware(Ceilings(36e9, 75e9), 60e-6, 1.0),  # two cores, measured
    "l4": _sheet(0.30, 121),
    "rtx-4090": _sheet(1.01, 165),
    "a100": _sheet(2.04, 312),
    "h100": _sheet(3.35, 989),
    "h200": _sheet(4.80, 989),
    "b200": _sheet(8.00, 2250),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A model's size, how its weights are stored, and what it runs on."""

    shape: Shape
    weight_bytes: float
    hardware: Hardware

    def seconds(self, length: int, rows: int) -> float:
        """The formula above."""
        shape, ceilings = self.shape, self.hardware.ceilings
        read = shape.read_weights * self.weight_bytes / ceilings.bytes
        multiplied = 2 * shape.read_weights * rows / ceilings.flops
        kv_bytes = 4 if self.weight_bytes == WEIGHT_BYTES["fp32"] else 2
        reached = replace(ceilings, flops=self.hardware.attention * ceilings.flops)
        attention = attention_floor(shape, length, rows, kv_bytes, reached)
        return max(read, multiplied) + shape.layers * (attention + self.hardware.overhead)


def read_place(text: str) -> Place:
    """SHAPE@HARDWARE or SHAPE:DTYPE@HARDWARE; hardware by name or as BYTES/FLOPS per second."""
    what, _, where = text.rpartition("@")
    name, _, dtype = what.partition(":")
    if not name or not where:
        raise InputError(f"{text!r} names no model and hardware; write {SPELLED}")
    shape = read_shape(name)
    if not shape.layers:
        raise InputError(f"{name!r} has no layers; choose from {', '.join(SHAPES)}")
    size = WEIGHT_BYTES.get(dtype or "bf16")
    if size is None:
        raise InputError(f"unknown dtype {dtype!r}; choose one of {', '.join(WEIGHT_BYTES)}")
    return Place(shape, size, _hardware(where))


def _hardware(text: str) -> Hardware:
    if text in HARDWARE:
        return HARDWARE[text]
    try:
        sizes = [float(part) for part in text.split("/")]
    except ValueError:
        sizes = []
    if len(sizes) not in (2, 3) or not all(0 < size < float("inf") for size in sizes[:2]):
        raise InputError(
            f"unknown hardware {text!r}; choose from {', '.join(HARDWARE)} or spell it out: "
            "BYTES/FLOPS per second, or BYTES/FLOPS/SECONDS with what a layer takes besides"
        )
    return Hardware(Ceilings(*sizes[:2]), *sizes[2:])


def roofline(place: Place) -> StepCosts:
    """The floor as a table."""
    return _table(place.seconds)


def scaled(costs: StepCosts, like: Place, place: Place) -> StepCosts:
    """What a table that was measured at `like` would be at another place."""

    def seconds(length: int, rows: int) -> float:
        longer = place.seconds(length, rows) / like.seconds(length, rows)
        return costs.step(length, rows) * longer

    return _table(seconds)


def _table(seconds: Callable[[int, int], float]) -> StepCosts:
    rows = tuple(tuple(seconds(length, nodes) for nodes in GPU_NODES) for length in GPU_LENGTHS)
    return StepCosts(GPU_LENGTHS, GPU_NODES, rows)
