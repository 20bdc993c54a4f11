"""Which peers run, by what their pythons have; absent ones are a line each."""

import sys
from pathlib import Path

import pytest

from graft.bench import installed
from graft.bench.asked import Asked
from graft.bench.installed import choose, interpreters
from graft.bench.systems import PEERS
from graft.errors import InputError


@pytest.fixture
def python(tmp_path):
    """Pretends to be one that has only the packages named after it."""

    def make(*packages):
        file = tmp_path / f"python-{'-'.join(packages)}"
        known = " ".join(packages)
        file.write_text(f'#!/bin/sh\ncase " {known} " in *" $3 "*) exit 0;; esac\nexit 1\n')
        file.chmod(0o755)
        return str(file)

    return make


def test_absent_peers_are_named_with_the_reason(python, tmp_path):
    asked = Asked(draft_model="small", gguf=tmp_path / "model.gguf")
    named = {"vllm": python("vllm"), "llama": python("llama_cpp")}
    chosen, lines = choose(asked, named)
    assert chosen.peers.split(",") == [
        "hf", "hf-pld", "hf-assisted", "hf-compile", "vllm", "vllm-ngram", "llama", "llama-pld",
    ]  # fmt: skip
    assert lines == [
        f"vllm-suffix is left out: {named['vllm']} has no arctic_inference",
        f"vllm-graft is left out: {named['vllm']} has no graft.integrations.vllm",
        "llama-draft is left out: it needs --draft-gguf: a smaller model's GGUF file",
    ]
    assert (chosen.python_vllm, chosen.python_llama) == (named["vllm"], named["llama"])


def test_every_variant_runs_where_all_is_there(python):
    asked = Asked(draft_model="small", gguf=Path("a.gguf"), draft_gguf=Path("b.gguf"))
    vllm = python("vllm", "arctic_inference", "graft.integrations.vllm")
    chosen, lines = choose(asked, {"vllm": vllm, "llama": python("llama_cpp")})
    assert chosen.peers.split(",") == list(PEERS)
    assert lines == []


def test_an_engine_without_a_python_is_left_out():
    chosen, lines = choose(Asked(peers="hf,vllm"), {})
    assert chosen.peers == "hf"
    assert lines == [
        "vllm is left out: it needs --peer-python vllm=PATH, the python of its environment"
    ]
    _, lines = choose(Asked(peers="vllm"), {"vllm": "/nowhere/python"})
    assert lines == ["vllm is left out: /nowhere/python has no vllm"]


def test_a_package_is_looked_for_without_being_imported():
    assert installed._has(sys.executable, "json", {})
    assert not installed._has(sys.executable, "no_such_package", {})


@pytest.mark.parametrize("word", ["vllm", "vllm=", "sglang=/usr/bin/python"])
def test_a_python_needs_an_engine_and_a_path(word):
    with pytest.raises(InputError, match="--peer-python is ENGINE=PATH with one of hf, vllm"):
        interpreters([word])


def test_an_unknown_peer_is_one_line():
    with pytest.raises(InputError, match="unknown peer 'sglang'"):
        choose(Asked(peers="sglang"), {})
