"""KV caches of 16 and 8 bits on the CPU."""

import pytest
import torch
from daily import daily
from test_load import PROMPT, logits_of, one_line, save

from graft.errors import InputError
from graft.models.load import KV_CACHE_DTYPES, _kv_dtype, load_model
from graft.tree.draft_tree import chain

NEAR = {"bf16": 0.03, "fp16": 0.004, "fp8": 0.4}


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch, one_thread):
    monkeypatch.setenv("GRAFT_HOME", str(tmp_path / "home"))


def load(folder, dtype="auto"):
    return load_model(str(folder), dtype="fp32", device="cpu", kv_cache_dtype=dtype)


@pytest.mark.parametrize("dtype", daily(NEAR, "bf16"))
def test_logits_are_near_and_have_the_same_bits_for_any_number_of_rows(tmp_path, dtype):
    folder = save(tmp_path / "model")
    exact, rounded = load(folder), load(folder, dtype)
    assert rounded.forward_name == "panels"
    assert exact.identity != rounded.identity
    saved = exact.model.arena.storage.row_bytes // rounded.model.arena.storage.row_bytes
    assert saved == (4 if dtype == "fp8" else 2)
    expected, found = logits_of(exact), logits_of(rounded)
    assert 0 < float((found - expected).abs().max()) < NEAR[dtype] * float(expected.abs().max())
    model = rounded.model
    one, together = model.open(40), model.open(40)
    singly = [model.prefill_chunk(one, [token]) for token in PROMPT[:24]]
    assert torch.equal(model.prefill(together, PROMPT[:13]), singly[12])
    drafted = model.score([together], [chain(PROMPT[13:24])])[0]
    assert torch.equal(drafted, torch.stack(singly[13:]))


def test_unknown_dtypes_other_models_and_gpus_are_refused(tmp_path):
    with pytest.raises(InputError) as error:
        load(tmp_path, "int4")
    assert f"choose one of {', '.join(KV_CACHE_DTYPES)}" in one_line(error)
    with pytest.raises(InputError, match="is not Llama-shaped; use --kv-cache-dtype auto"):
        load(save(tmp_path / "phi3", "phi3"), "bf16")
    with pytest.raises(InputError, match="needs the CPU"):
        _kv_dtype("bf16", torch.device("cuda"))
