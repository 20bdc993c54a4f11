import pytest

from graft.bench.simulate.roofline import Hardware, Place, read_place, roofline, scaled
from graft.bench.simulate.shapes import KNOWN, Ceilings
from graft.errors import InputError
from graft.models.step_costs import REFERENCE, StepCosts

SHAPE = KNOWN["llama-8b"]


def place(**changes):
    machine = {"bytes": 1e12, "flops": 1e14, **changes}
    return Place(SHAPE, 2.0, Hardware(Ceilings(machine["bytes"], machine["flops"]), 0.0, 1.0))


def test_one_row_takes_as_long_as_reading_weights_and_cache():
    read = 2 * SHAPE.read_weights + 2 * SHAPE.layers * SHAPE.kv_numbers(1001)
    assert place().seconds(1000, 1) == pytest.approx(read / 1e12)


def test_many_rows_take_as_long_as_computing():
    rows = 4096
    products = 2 * SHAPE.read_weights * rows
    attention = SHAPE.layers * 4 * rows * SHAPE.heads * SHAPE.head_size * (1000 + rows)
    assert place().seconds(1000, rows) == pytest.approx((products + attention) / 1e14)


def test_a_table_has_the_formulas_values():
    table = roofline(place())
    assert table.step(2048, 16) == pytest.approx(place().seconds(2048, 16))


def test_scaling_keeps_the_distance_to_the_bound():
    here, there = place(), place(bytes=2e12, flops=2e14)
    floor = roofline(here)
    slower = StepCosts(
        floor.lengths, floor.nodes, tuple(tuple(2 * x for x in row) for row in floor.seconds)
    )
    carried = scaled(slower, here, there)
    assert carried.step(2048, 16) == pytest.approx(floor.step(2048, 16))  # twice as slow and fast
    assert scaled(floor, here, here).step(16384, 4) == pytest.approx(floor.step(16384, 4))


def test_the_bound_of_two_cores_is_near_the_measured_steps():
    measured, floor = StepCosts.read(REFERENCE), read_place("smollm2:fp32@neoverse-n1")
    for length in measured.lengths:
        for nodes in (1, 4, 16, 64):
            assert floor.seconds(length, nodes) == pytest.approx(
                measured.step(length, nodes), rel=0.25
            )


def test_hardware_can_be_spelled_out():
    assert read_place("llama-8b:int8@1e12/1e14/0").seconds(0, 1) < place().seconds(0, 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("h200", "names no model and hardware"),
        ("@h200", "names no model and hardware"),
        ("gpt-9@h200", "unknown shape 'gpt-9'"),
        ("8/8/64@h200", "has no layers"),
        ("llama-8b:fp3@h200", "unknown dtype 'fp3'"),
        ("llama-8b@tpu", "unknown hardware 'tpu'"),
        ("llama-8b@0/1", "unknown hardware '0/1'"),
    ],
)
def test_other_words_are_refused(text, line):
    with pytest.raises(InputError, match=line):
        read_place(text)
