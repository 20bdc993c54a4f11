"""The scripts that measure a server: their sums, and kill -9 for real."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from serving import serving
from tiny import tiny_engine, tiny_network

from benchmarks.serve.client import Streamed
from graft.home import TEMPORARY
from graft.models.prefix_files import checksum

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    """Scripts find each other as they do when they are run."""
    monkeypatch.syspath_prepend(str(FOLDER))


def test_load_counts_what_came_of_requests(script):
    load = script("serve_load")
    tally = load.Tally()
    tally.count(Streamed(text="same", pieces=[0.5, 0.75, 1.0]), "same")
    tally.count(Streamed(text="other", pieces=[0.5]), "same")
    tally.count(Streamed(busy=1.0), "same")
    tally.count(Streamed(error="broken"), "same")
    tally.count(Streamed(left=True, pieces=[0.125]), "same")
    assert tally.outcomes == {
        "completed": 1, "different": 1, "queue_full": 1, "failed": 1, "left": 1,
    }  # fmt: skip
    assert (tally.tokens, tally.failures) == (5, ["broken"])
    assert (tally.first, tally.between) == ([0.5, 0.5, 0.125], [0.25, 0.25])


def test_growth_of_memory(script):
    load = script("serve_load")
    grown = load.memory([50.0, 60.0, 100.0, 100.0, 120.0, 120.0, 150.0, 150.0])
    assert (grown["second_quarter"], grown["last_quarter"], grown["growth"]) == (100, 150, 1.5)
    assert load.memory([]) is None


def test_throughput_is_compared_round_by_round(script):
    speeds = {"plain": [10.0, 20.0, 10.0], "drafting": [20.0, 20.0, 15.0]}
    told = script("serve_throughput").summary(4, speeds)
    assert told["ratios"] == {"drafting / plain": {"median": 1.5, "least": 1.0, "most": 2.0}}


def test_no_two_requests_begin_alike(script):
    requests = script("serve_throughput").make_requests(5, 1, 9)
    assert len({each["messages"][0]["content"][:12] for each in requests}) == 5


def test_sound_damaged_and_half_files_are_told_apart(script, tmp_path):
    tokens, rows = torch.arange(4), torch.randn(2, 4)
    about = {"text": checksum(tokens), "rows": checksum(rows)}
    save_file({"tokens": tokens, "rows": rows}, tmp_path / "good.safetensors", about)
    save_file({"tokens": tokens, "rows": rows + 1}, tmp_path / "changed.safetensors", about)
    whole = (tmp_path / "good.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-5])
    (tmp_path / f"{TEMPORARY}half.safetensors").write_bytes(whole[:20])
    assert script("serve_kill").caches(tmp_path) == {"sound": 1, "damaged": 2, "temporary": 1}


@pytest.fixture(scope="module")
def server():
    network = tiny_network(max_position_embeddings=8192)
    with serving(tiny_engine(network, max_batch=4)) as running:
        yield running


def lines_of(monkeypatch, script, out, *options):
    """What a script writes to `out`, and its exit status."""
    monkeypatch.setattr(sys, "argv", ["script", "--out", str(out), *map(str, options)])
    status = 0
    try:
        script.main()
    except SystemExit as end:
        status = end.code
    return [json.loads(line) for line in out.read_text().splitlines()], status


def test_load_on_a_server_finds_nothing_wrong(script, server, monkeypatch, tmp_path):
    lines, status = lines_of(
        monkeypatch, script("serve_load"), tmp_path / "load.jsonl",
        "--url", server.url, "--minutes", 0.02, "--clients", 6, "--prompts", 4, "--every", 1,
        "--pid", os.getpid(),
    )  # fmt: skip
    assert status == 0, lines[-1]
    assert lines[-1]["completed"] > 0
    assert (lines[-1]["different"], lines[-1]["still_running_afterwards"]) == (0, 0)
    assert lines[0]["server_mb"] > 0


def test_throughput_of_a_server_and_of_another(script, server, monkeypatch, tmp_path):
    lines, status = lines_of(
        monkeypatch, script("serve_throughput"), tmp_path / "throughput.jsonl",
        "--url", server.url, "--at-once", 1, 2, "--rounds", 1, "--least", 2, "--max-tokens", 6,
        "--against", server.url,
    )  # fmt: skip
    assert status == 0
    summaries = [line for line in lines if "summary" in line]
    assert [line["at_once"] for line in summaries] == [1, 2]
    assert set(summaries[0]["ratios"]) == {"drafting / plain", f"drafting / {server.url}"}


@pytest.mark.slow
def test_a_server_that_is_killed_under_load_hurts_nothing(tmp_path, loaded_smollm2):
    out = tmp_path / "kill.jsonl"
    done = subprocess.run(
        [sys.executable, FOLDER / "serve_kill.py", "--kills", "1", "--seconds", "3", "--out", out],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(out.read_text().splitlines()[-1])
    assert summary["sound_files"] > 0
    assert min(summary["under_way_when_killed"]) > 0
