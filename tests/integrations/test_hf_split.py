"""A model that two processes share (tensor parallel, gloo) writes what one process writes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hf_cases import SHAPES, drafted, make
from split_ranks import SEED
from tiny import tiny_network

from graft.errors import InputError
from graft.models.forward_hook import shapes_of
from graft.models.recurrent import RecurrentLayers

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


def long_prompt():
    """Longer than what SnapKV keeps of one."""
    words = SHAPES["one"]["input_ids"].repeat(1, 300 // SHAPES["one"]["input_ids"].shape[1] + 1)
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}


@pytest.fixture(scope="module")
def whole():
    return make("hook")


@pytest.fixture(scope="module")
def ranks(whole, tmp_path_factory):
    """What each of two processes found; costs are measured, as they are for users."""
    folder, results = tmp_path_factory.mktemp("split"), tmp_path_factory.mktemp("results")
    whole.save_pretrained(folder / "model")
    tiny_network(kv_heads=1).save_pretrained(folder / "one head")
    prompts = {
        name: {key: rows.tolist() for key, rows in inputs.items()}
        for name, inputs in (*SHAPES.items(), ("long", long_prompt()))
    }
    (folder / "asked.json").write_text(json.dumps(prompts))
    script = Path(__file__).with_name("split_ranks.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, str(script), str(folder), str(results)]
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GRAFT_HOME": str(folder / "home")}
    environment = {k: v for k, v in os.environ.items() if k != "GRAFT_COSTS"} | own
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-9000:]
    return [json.loads((results / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_each_process_has_a_part_of_the_heads(ranks, whole):
    assert [rank["share"] for rank in ranks] == [whole.config.vocab_size // 2] * 2


@pytest.mark.slow
def test_greedy_tokens_equal_one_process(ranks, whole):
    expected = whole.generate(**SHAPES["ragged"], max_new_tokens=40).tolist()
    for rank in ranks:
        assert rank["greedy"]["tokens"] == expected
        assert 0 < rank["greedy"]["accepted"] < rank["greedy"]["drafted"]


@pytest.mark.slow
def test_sampled_tokens_equal_one_process_with_the_first_seed(ranks, whole):
    torch.manual_seed(SEED)
    expected = drafted(whole, **SHAPES["ragged"], max_new_tokens=40, do_sample=True).tolist()
    for rank in ranks:
        assert rank["sampled"]["tokens"] == expected
        assert 0 < rank["sampled"]["accepted"] < rank["sampled"]["drafted"]


@pytest.mark.slow
def test_with_measured_costs_all_processes_draft_alike(ranks, whole):
    expected = whole.generate(**SHAPES["one"], max_new_tokens=40).tolist()
    assert [rank["auto"]["tokens"] for rank in ranks] == [expected] * 2
    assert ranks[0]["auto"]["steps"] == ranks[1]["auto"]["steps"]


@pytest.mark.slow
def test_self_drafting_selects_kv_by_the_heads_of_each_process(ranks, whole):
    expected = whole.generate(**long_prompt(), max_new_tokens=20).tolist()
    for rank in ranks:
        assert rank["by itself"]["tokens"] == expected
        assert rank["by itself"]["accepted"] > 0
    assert ranks[0]["by itself"]["steps"] == ranks[1]["by itself"]["steps"]


@pytest.mark.slow
def test_heads_that_cannot_be_divided_are_an_error(ranks):
    for rank in ranks:
        assert rank["one head"]["error"].endswith("start as many as divide them")


@pytest.mark.slow
def test_one_process_may_stream(ranks, whole):
    expected = whole.generate(**SHAPES["one"], max_new_tokens=20).tolist()
    assert [rank["streamed"]["tokens"] for rank in ranks] == [expected] * 2
    assert ranks[0]["streamed"]["heard"] == expected[0]
    assert ranks[0]["streamed"]["ended"]


@pytest.mark.slow
def test_different_prompts_are_an_error_in_all_processes(ranks, whole):
    for rank in ranks:
        assert rank["different prompts"]["error"].startswith("InputError: the processes that share")
    expected = whole.generate(**SHAPES["one"], max_new_tokens=20).tolist()
    assert [rank["still"]["tokens"] for rank in ranks] == [expected] * 2


@pytest.mark.slow
def test_max_time_is_an_error(ranks):
    for rank in ranks:
        assert rank["max_time"]["error"].startswith("InputError: max_time is not supported")


@pytest.mark.parametrize(("over", "reason"), [(4, "FSDP"), (None, "not split by")])
def test_a_model_split_in_another_way_is_an_error(monkeypatch, over, reason):
    network = tiny_network()
    monkeypatch.setattr(network, "_tp_size", 2)
    if over:
        monkeypatch.setattr(network, "_device_mesh", SimpleNamespace(size=lambda: over))
    with pytest.raises(InputError, match=reason):
        drafted(network, **SHAPES["one"], max_new_tokens=3)


def test_heads_are_counted_without_a_trace():
    network = tiny_network(kv_heads=4)
    shapes, states = shapes_of(network, RecurrentLayers(network))
    assert [each.heads for each in shapes.values()] == [4] * len(shapes)
    assert not states
    assert network.config._attn_implementation == "eager"
