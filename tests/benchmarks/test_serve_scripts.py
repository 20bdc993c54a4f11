"""The scripts that measure a server: their sums, and kill -9 for real."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from serving import serving
from tiny import tiny_engine, tiny_network

from benchmarks.script import ended
from benchmarks.serve import kill, side_by_side, throughput
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


def test_servers_answer_the_same_requests_in_turns(server, monkeypatch, tmp_path, capsys):
    questions = [
        {"question_id": number, "category": "rag", "turns": [f"The cat {number} and the hen"]}
        for number in range(1, 5)
    ]
    folder = tmp_path / "spec_bench"
    folder.mkdir()
    lines = "".join(json.dumps(each) + "\n" for each in questions)
    (folder / "question.jsonl").write_text(lines)
    requests, out = tmp_path / "requests.jsonl.gz", tmp_path / "rows.jsonl"
    monkeypatch.setattr(side_by_side, "ProcessPoolExecutor", InThreads)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["side_by_side", *map(str, words)])
        return ended(side_by_side.main)

    assert not call("write", "--out", requests, "--requests", f"all=spec_bench:{folder}:3:rag")
    sent = ["--requests", requests, "--max-tokens", 6, "--repeats", 2, "--concurrency", 1, 2]
    servers = [f"--server={name}={server.url}" for name in ("one", "two")]
    assert not call("run", *sent, *servers, "--out", out)
    rows = read_results(out).rows
    order = [(row["concurrency"], row["repeat"], row["server"]) for row in rows]
    turns = [(0, "one"), (0, "two"), (1, "two"), (1, "one")]
    assert order == [(many, *turn) for many in (1, 2) for turn in turns]
    assert all(row["same"] == row["compared"] == row["requests"] == 3 for row in rows[1:])
    assert all(row["tokens"] == 18 for row in rows)
    assert "one" in capsys.readouterr().out
    for words, message in (
        (["run", *sent, "--server=one=http://127.0.0.1:9"], "http://127.0.0.1:9 does not answer"),
        (["run", "--requests", tmp_path / "none", *servers], "`write` makes it"),
        (["write", "--out", requests, "--requests", "all"], "--requests takes NAME=SUITE"),
    ):
        assert call(*words) == 1
        found = capsys.readouterr().err
        assert message in found
        assert found.startswith("error: ")
        assert found.count("\n") == 1


class InThreads(ThreadPoolExecutor):
    """Clients in this process."""

    def __init__(self, count, **_):
        super().__init__(count)
