"""Sizes of the measured models: all weights, and fewer layers."""

from dataclasses import replace

from graft.bench.simulate.shapes import SPELLED, Shape
from graft.errors import InputError


def all_weights(shape: Shape) -> int:
    """Numbers in all weights."""
    return shape.read_weights + (0 if shape.tied else shape.vocabulary * shape.hidden)


def with_layers(shape: Shape, layers: int) -> Shape:
    """The same shape with fewer layers."""
    if not shape.layers:
        raise InputError(f"--layers needs a whole shape: a known one or {SPELLED}")
    if not 1 <= layers <= shape.layers:
        raise InputError(f"--layers of {shape.name} is 1 to {shape.layers}, not {layers}")
    return replace(shape, layers=layers)
