"""A grown model generates the same text."""

import sys

import pytest
from tiny import tiny_network, tiny_tokenizer

from benchmarks import grow
from graft import SamplingParams, load

PROMPT = [5, 9, 17, 4, 9, 17]


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 4), (16, 16)])
def test_grown_model_generates_the_same_tokens(tmp_path, monkeypatch, heads, kv_heads):
    small = tmp_path / "small"
    tiny_network(heads=4, kv_heads=2).save_pretrained(small)
    tiny_tokenizer().save_pretrained(small)
    command = f"grow --model {small} --inner 192 --heads {heads} --kv-heads {kv_heads}"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--out", str(tmp_path / "grown")])
    grow.main()
    texts = [
        load(str(folder), dtype="fp32", draft="plain")
        .generate(PROMPT, SamplingParams(max_tokens=24, ignore_eos=True))
        .token_ids
        for folder in (small, tmp_path / "grown")
    ]
    assert texts[0] == texts[1]
