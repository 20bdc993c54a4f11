"""GGUF files whose blocks are multiplied as they are."""

import zlib

import pytest
import tiny_gguf
import torch
from gguf_rows import random_rows
from test_load import PROMPT, logits_of, one_line

from graft.errors import CheckpointError, InputError
from graft.kernels.gguf_blocks import FORMATS
from graft.models import load
from graft.models.load import load_model
from graft.tree.draft_tree import chain

SIZES = tiny_gguf.Sizes(hidden=256, heads=8, kv_heads=4, head=32, inner=512)
MIXES = {
    "Q4_K_M": {"": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q8_0"},
    "Q5_K_M": {"": "Q5_K", "attn_v": "Q6_K", "token_embd": "Q5_1"},
    "Q4_0": {"": "Q4_0"},
    "Q4_1": {"": "Q4_1", "token_embd": "Q8_0"},
    "Q5_0": {"": "Q5_0", "attn_v": "Q8_0"},
}


def write(folder, mix, broken=None, architecture="llama"):
    """A file with random blocks; NaN is a scale of the tensor `broken`."""

    def blocks(name, shape):
        if len(shape) != 2:
            return None
        found = mix.get(name.split(".")[-2], mix[""])
        raw = random_rows(found, *shape, zlib.crc32(name.encode()), spread=shape[1] ** -0.5)
        if name == broken:
            place = FORMATS[found].scale_at
            raw[0, place : place + 2] = (0, 0x7E)
        return raw, FORMATS[found].number

    file = folder / "packed.gguf"
    return str(tiny_gguf.write(file, sizes=SIZES, blocks=blocks, architecture=architecture))


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch, one_thread):
    monkeypatch.setenv("GRAFT_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("mix", MIXES)
def test_logits_are_near_those_of_the_widened_weights(tmp_path, mix):
    file = write(tmp_path, MIXES[mix])
    packed = load_model(file, device="cpu")
    assert (packed.dtype, packed.forward_name, packed.is_exact) == ("gguf", "panels", True)
    wide = load_model(file, dtype="fp32", device="cpu")
    assert wide.dtype == "fp32"
    assert wide.checkpoint.fingerprint == packed.checkpoint.fingerprint
    found, expected = logits_of(packed), logits_of(wide)
    difference = float((found - expected).abs().max())
    assert 0 < difference < 0.03 * float(expected.abs().max())


@pytest.mark.parametrize("mix", MIXES)
def test_logits_have_the_same_bits_for_any_number_of_rows(tmp_path, mix):
    model = load_model(write(tmp_path, MIXES[mix]), device="cpu").model
    one, all_at_once = model.open(40), model.open(40)
    expected = [model.prefill_chunk(one, [token]) for token in PROMPT[:24]]
    found = model.prefill(all_at_once, PROMPT[:13])
    assert torch.equal(found, expected[12])
    drafted = model.score([all_at_once], [chain(PROMPT[13:24])])[0]
    assert torch.equal(drafted, torch.stack(expected[13:]))


def test_a_second_load_needs_no_transformers_and_no_copy_of_the_weights(tmp_path, monkeypatch):
    file = write(tmp_path, MIXES["Q4_K_M"])
    first = load_model(file, device="cpu")
    monkeypatch.delattr(load, "_transformers_config")
    assert torch.equal(logits_of(load_model(file, device="cpu")), logits_of(first))
    assert not list((tmp_path / "home").rglob("*.safetensors"))


def test_embeddings_and_output_rows_are_the_dequantised_ones(tmp_path):
    file = write(tmp_path, MIXES["Q4_1"])
    packed, wide = (load_model(file, dtype=dtype, device="cpu") for dtype in ("gguf", "fp32"))
    tokens = torch.tensor([[5, 9], [200, 0]])
    near = {"rtol": 2**-8, "atol": 1e-6}  # the widened are rounded to bfloat16
    found, expected = (each.model.forward.embed(tokens) for each in (packed, wide))
    torch.testing.assert_close(found, expected, **near)
    found, expected = (each.model.forward.output_weight(None) for each in (packed, wide))
    torch.testing.assert_close(found, expected, **near)


def test_format_without_a_kernel_is_widened_and_named(tmp_path):
    file = str(tiny_gguf.write(tmp_path / "plain.gguf", sizes=SIZES))
    assert load_model(file, device="cpu").dtype in ("fp32", "bf16")
    with pytest.raises(InputError) as error:
        load_model(file, dtype="gguf", device="cpu")
    assert "token_embd.weight is stored as F32; kernels exist for Q4_0, Q4_1" in one_line(error)


def test_sizes_without_a_kernel_are_widened_and_named(tmp_path):
    file = str(tiny_gguf.write(tmp_path / "tiny.gguf", quantised=True))
    assert load_model(file, device="cpu").dtype in ("fp32", "bf16")
    with pytest.raises(InputError, match="head_dim 8 is not a multiple of 16"):
        load_model(file, dtype="gguf", device="cpu")


def test_other_checkpoints_have_no_blocks(tmp_path):
    from test_load import save

    with pytest.raises(InputError, match="is not a GGUF file; use --dtype auto"):
        load_model(str(save(tmp_path / "llama")), dtype="gguf", device="cpu")


def test_scale_that_is_not_finite_is_one_line(tmp_path):
    file = write(tmp_path, MIXES["Q4_K_M"], broken="blk.1.ffn_up.weight")
    with pytest.raises(CheckpointError) as error:
        load_model(file, device="cpu")
    assert "blk.1.ffn_up.weight holds values that are not finite" in one_line(error)
