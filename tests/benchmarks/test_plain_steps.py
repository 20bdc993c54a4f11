"""Plain decoding of several engines: transformers' attentions, engines that fail."""

import json
import sys

import pytest

from benchmarks.decode import plain_steps, shapes
from graft.bench.worker import RequestError, Worker


@pytest.mark.parametrize("name", ["transformers-eager", "transformers-sdpa"])
def test_transformers_generates_the_same_number_of_tokens_for_all(tiny_folder, name, monkeypatch):
    monkeypatch.setattr(plain_steps, "EAGER_CHUNK", 8)
    options = plain_steps.EngineOptions(str(tiny_folder), 64, 2, 0)
    generate = plain_steps.ENGINES[name](options)
    assert [len(each) for each in generate([[5, 6, 7] * 9, [8, 9, 10] * 9], 12)] == [12, 12]
    monkeypatch.setattr(plain_steps.random.Random, "randrange", lambda *_: 9)  # a tiny vocabulary
    times = plain_steps.timed(generate, 40, 2, 4)
    assert times["prefill_s"] > 0


def test_cell_that_fails_is_a_row_with_the_error(monkeypatch, capsys, tmp_path):
    def ask(self, request):
        if request["context"] > 100 and request["id"] == "transformers-eager":
            raise RequestError("out of memory")
        return {"id": request["id"], "prefill_s": 1.0, "ms_per_step": 2.0}

    for method in ("start", "close", "kill"):
        monkeypatch.setattr(Worker, method, lambda *_: None)
    monkeypatch.setattr(Worker, "ask", ask)
    words = ["--model", "m", "--engines", "graft,transformers-eager", "--cells", "50x1,200x1"]
    words += ["--out", str(tmp_path / "steps.jsonl")]
    monkeypatch.setattr(sys, "argv", ["plain_steps", *words])
    plain_steps.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{"]
    assert [row.get("error") for row in rows] == [None, None, None, "out of memory"]


def test_a_shape_needs_no_weights(monkeypatch, tmp_path):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    monkeypatch.setitem(shapes.SIZES, "phi3-tiny", ("Phi3", {**sizes, "pad_token_id": 0}))
    options = plain_steps.EngineOptions.of("phi3-tiny", [(64, 1), (48, 2)])
    assert (options.context, options.batch) == (64, 2)
    assert options.kv_bytes >= 4 * 16 * 96
    generate = plain_steps.ENGINES["graft"](options)
    monkeypatch.setattr(plain_steps.random.Random, "randrange", lambda *_: 9)  # a tiny vocabulary
    assert plain_steps.timed(generate, 40, 2, 4)["prefill_s"] > 0
    shapes.write_config("phi3-tiny", tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["architectures"] == ["Phi3ForCausalLM"]
    assert written["hidden_size"] == 32


@pytest.mark.parametrize("name", shapes.SIZES)
def test_shapes_are_configs_of_transformers(name):
    assert shapes.config_of(name).num_hidden_layers == shapes.SIZES[name][1]["num_hidden_layers"]


def test_unknown_engine_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["plain_steps", "--model", "m", "--engines", "graft,magic"])
    with pytest.raises(SystemExit):
        plain_steps.main()
    assert "unknown engine 'magic'; choose from graft, vllm" in capsys.readouterr().err
