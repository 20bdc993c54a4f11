import pytest

from benchmarks.kernels.settings import KernelOptions
from benchmarks.kernels.shapes import all_weights
from benchmarks.kernels.steps import random_network
from benchmarks.options import parse
from graft.bench.simulate.shapes import KNOWN, read_shape
from graft.errors import InputError


def test_known_shapes_have_as_many_weights_as_the_models_they_are_named_after():
    assert all_weights(KNOWN["llama-8b"]) == 8_030_261_248
    assert all_weights(KNOWN["smollm2"]) == 134_515_008
    assert KNOWN["llama-8b"].read_weights == 8_030_261_248 - 128256 * 4096
    assert KNOWN["smollm2"].read_weights == all_weights(KNOWN["smollm2"])


def test_a_network_has_the_weights_that_its_shape_says():
    settings = KernelOptions(shape="4/2/16/3/48/96/100", contexts=(20,), device="cpu").plan()
    network = random_network(settings)
    assert sum(weight.numel() for weight in network.parameters()) == all_weights(settings.shape)
    spread = network.model.layers[0].mlp.up_proj.weight.std().item()
    assert spread == pytest.approx(0.02, rel=0.1)


def test_sizes_can_be_spelled_out():
    heads = read_shape("8/2/64")
    assert (heads.heads, heads.kv_heads, heads.head_size, heads.layers) == (8, 2, 64, 0)
    whole = read_shape("8/2/64/4/512/1024/1000")
    assert (whole.layers, whole.hidden, whole.inner, whole.vocabulary) == (4, 512, 1024, 1000)
    assert whole.kv_numbers(10) == 2 * 2 * 64 * 10


def test_fewer_layers_say_how_many_there_are():
    plan = KernelOptions(shape="llama-8b", layers=2, device="cpu").plan()
    assert (plan.shape.layers, plan.of_layers) == (2, 32)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"shape": "gpt-9"}, "unknown shape 'gpt-9'; choose from smollm2, qwen-0.5b"),
        ({"shape": "8/2"}, "unknown shape '8/2'"),
        ({"shape": "8/3/64"}, "8 heads are no multiple of 3 KV heads"),
        ({"shape": "8/2/63"}, "the head size must be even, not 63"),
        ({"shape": "8/2/64", "layers": 2}, "--layers needs a whole shape"),
        ({"layers": 99}, "--layers of smollm2 is 1 to 30, not 99"),
        ({"shape": "8/2/64", "parts": ("step",)}, "--parts step needs a whole shape"),
        ({"parts": ("memory",)}, "--parts is attention, step or both, not 'memory'"),
        ({"nodes": (0, 1)}, "--nodes takes whole numbers from 1 on"),
        ({"dtype": "int8"}, "unknown dtype 'int8'; choose from fp32, bf16, fp16"),
        ({"repeats": 0}, "--repeats must be at least 1, not 0"),
        ({"device": "abacus"}, "unknown device 'abacus'"),
    ],
)
def test_wrong_settings_are_refused(given, line):
    with pytest.raises(InputError) as refused:
        KernelOptions(**{"device": "cpu", **given}).plan()
    assert line in str(refused.value)


def test_lists_are_sorted_and_k_means_1024():
    words = ["--contexts", "4k,100", "--nodes", "8,1,8", "--device", "cpu"]
    plan = parse(KernelOptions, words, "kernels").plan()
    assert plan.contexts == [100, 4096]
    assert plan.nodes == [1, 8]
