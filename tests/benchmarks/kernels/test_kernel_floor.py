import pytest

from benchmarks.kernels.floor import measure_ceilings, step_floor
from benchmarks.kernels.settings import KernelOptions
from graft.bench.simulate.shapes import KNOWN, Ceilings, attention_floor


def test_attention_is_bound_by_memory_with_few_nodes_and_by_products_with_many():
    shape, ceilings = KNOWN["llama-8b"], Ceilings(bytes=4e12, flops=8e14)
    few = attention_floor(shape, 131072, 1, 2, ceilings)
    assert few == pytest.approx(2 * 8 * 128 * 131073 * 2 / 4e12)
    many = attention_floor(shape, 131072, 64, 2, ceilings)
    assert many == pytest.approx(4 * 64 * 32 * 128 * 131136 / 8e14)
    assert many > few


def test_a_step_reads_weights_and_cache_once():
    assert step_floor(3_000, 1_000, Ceilings(bytes=2_000, flops=1)) == 2.0


@pytest.mark.slow
def test_ceilings_are_those_of_a_machine():
    found = measure_ceilings(KernelOptions(device="cpu", repeats=1).plan())
    assert 1e8 < found.bytes < 1e13
    assert 1e7 < found.flops < 1e15
