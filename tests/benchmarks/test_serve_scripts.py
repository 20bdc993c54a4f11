"""The scripts that measure a server: their sums, and kill -9 for real."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from serving import serving
from tiny import tiny_engine, tiny_network

from benchmarks.serve import kill, throughput
from graft.bench.result_file import read_results
from graft.home import TEMPORARY
from graft.models.prefix_files import checksum

ROOT = Path(__file__).parents[2]


def test_throughput_ratios_are_paired_by_repeat():
    speeds = {"plain": [10.0, 20.0, 10.0], "drafting": [20.0, 20.0, 15.0]}
    found = throughput.summary(4, speeds)
    assert found["ratios"] == {"drafting / plain": {"median": 1.5, "min": 1.0, "max": 2.0}}


def test_no_two_requests_share_a_prefix():
    requests = throughput.make_requests(5, 1, 9)
    assert len({each["messages"][0]["content"][:12] for each in requests}) == 5


def test_sound_damaged_and_temporary_files_are_counted(tmp_path):
    tokens, rows = torch.arange(4), torch.randn(2, 4)
    about = {"text": checksum(tokens), "rows": checksum(rows)}
    save_file({"tokens": tokens, "rows": rows}, tmp_path / "good.safetensors", about)
    save_file({"tokens": tokens, "rows": rows + 1}, tmp_path / "changed.safetensors", about)
    whole = (tmp_path / "good.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-5])
    (tmp_path / f"{TEMPORARY}half.safetensors").write_bytes(whole[:20])
    assert kill.caches(tmp_path) == {"sound": 1, "damaged": 2, "temporary": 1}


@pytest.fixture(scope="module")
def server():
    network = tiny_network(max_position_embeddings=8192)
    with serving(tiny_engine(network, max_batch=4)) as running:
        yield running


def test_throughput_of_a_server_and_of_another(server, monkeypatch, tmp_path):
    out = tmp_path / "throughput.jsonl"
    words = ["--out", out, "--url", server.url, "--concurrency", 1, 2, "--repeats", 1]
    words += ["--requests", 2, "--max-tokens", 6, "--against", server.url]
    monkeypatch.setattr(sys, "argv", ["throughput", *map(str, words)])
    throughput.main()
    rows = read_results(out).rows
    assert [row["concurrency"] for row in rows] == [1, 1, 1, 2, 2, 2]
    assert {row["variant"] for row in rows} == {"plain", "drafting", server.url}


@pytest.mark.slow
def test_a_server_killed_under_load_damages_nothing(tmp_path, loaded_smollm2):
    out = tmp_path / "kill.jsonl"
    words = ["--kills", "1", "--seconds", "3", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.serve.kill", *words],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = read_results(out).rows
    assert rows[-1]["files"]["sound"] > 0
    assert min(row["under_way_when_killed"] for row in rows) > 0
