"""The scripts that measure a server: their sums, and kill -9 for real."""

import gzip
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from serving import serving
from tiny import tiny_engine, tiny_network

from benchmarks.script import ended
from benchmarks.serve import kill, side_by_side, throughput
from benchmarks.serve.clients import Clients
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


@pytest.fixture
def call(monkeypatch):
    """Runs side_by_side in this process, with two processes of clients and small cells."""
    monkeypatch.setattr(side_by_side, "PROCESSES", 2)
    monkeypatch.setattr(side_by_side, "LEAST", 4)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["side_by_side", *map(str, words)])
        return ended(side_by_side.main)

    return run


def test_servers_answer_the_same_requests_in_turns(server, call, tmp_path, capsys):
    questions = [
        {"question_id": number, "category": "rag", "turns": [f"The cat {number} and the hen"]}
        for number in range(1, 5)
    ]
    folder = tmp_path / "spec_bench"
    folder.mkdir()
    lines = "".join(json.dumps(each) + "\n" for each in questions)
    (folder / "question.jsonl").write_text(lines)
    requests, out = tmp_path / "requests.jsonl.gz", tmp_path / "rows.jsonl"
    assert not call("write", "--out", requests, "--requests", f"all=spec_bench:{folder}:3:rag")
    sent = ["--requests", requests, "--max-tokens", 6, "--repeats", 2, "--concurrency", 1, 3]
    servers = [f"--server={name}={server.url}" for name in ("one", "two")]
    assert not call("run", *sent, *servers, "--out", out)
    rows = read_results(out).rows
    order = [(row["repeat"], row["concurrency"], row["server"]) for row in rows]
    turns = [(0, ("one", "two")), (1, ("two", "one"))]
    assert order == [
        (turn, many, name) for turn, names in turns for many in (1, 3) for name in names
    ]
    assert [row["requests"] for row in rows] == [4, 4, 12, 12] * 2
    assert all(row["same"] == row["compared"] == row["requests"] for row in rows)
    assert all(row["tokens"] == 6 * row["requests"] for row in rows)
    lines = capsys.readouterr().out.splitlines()
    starts = ["all 1 repeat 0: ", "all 3 repeat 0: ", "all 1 repeat 1: ", "all 3 repeat 1: "]
    starts += ["all 1, repeats 2: ", "all 3, repeats 2: "]
    assert len(lines) == len(starts)
    assert all(map(str.startswith, lines, starts))
    empty, other = tmp_path / "empty.gz", tmp_path / "other.gz"
    empty.write_bytes(gzip.compress(b""))
    other.write_bytes(b"{}")
    for words, message in (
        (["run", *sent, "--server=one=http://127.0.0.1:9"], "http://127.0.0.1:9 does not answer"),
        (["run", "--requests", tmp_path / "none", *servers], "`write` makes it"),
        (["run", "--requests", empty, *servers], "has no requests"),
        (["run", "--requests", other, *servers], "is not what `write` writes"),
        (["run", *sent, *servers, "--waves", 0], "--waves takes 1 or more"),
        (["run", *sent, *servers, "--concurrency", 4, 0], "--concurrency takes 1 or more"),
        (["run", *sent, *servers, servers[0]], "takes names that differ"),
        (["write", "--out", requests, "--requests", "all"], "--requests takes NAME=SUITE"),
        (["write", "--out", requests, "--requests", "all=a:b:c"], "--requests takes NAME=SUITE"),
    ):
        assert call(*words) == 1
        found = capsys.readouterr().err
        assert message in found
        assert found.startswith("error: ")
        assert found.count("\n") == 1


def test_repeats_start_at_different_requests():
    requests = [[{"content": str(i)}] for i in range(6)]
    for least in (4, 6, 8, 11):
        repeats = [side_by_side.requests_of(requests, least, repeat) for repeat in range(6)]
        assert all(len(each) == least for each in repeats)
        assert len({each[0][0]["content"] for each in repeats}) == 6


class Echo(ThreadingHTTPServer):
    """An OpenAI server that repeats requests; "0" is held until `others` are answered. Below
    /failing it answers none."""

    daemon_threads = True

    def __init__(self, others=0):
        super().__init__(("127.0.0.1", 0), EchoHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.others, self.calls, self.answered = others, [], 0
        self.changed = threading.Condition()
        self.waited_in_vain = False


class EchoHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.calls.append("GET")
        self.reply(json.dumps({"data": [{"id": "m"}]}))

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["content-length"])) or "{}")
        if "messages" not in sent:
            self.reply("")
            return
        if self.path.startswith("/failing"):
            self.reply("engine is dead", 500)
            return
        self.server.calls.append("POST")
        text, server = sent["messages"][0]["content"], self.server
        with server.changed:
            if text == "0":
                enough = server.changed.wait_for(lambda: server.answered >= server.others, 30)
                server.waited_in_vain |= not enough
            server.answered += 1
            server.changed.notify_all()
        self.reply(f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n")

    def reply(self, text, status=200):
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def echo():
    with Echo() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_slow_request_holds_no_other_up_and_answers_are_in_order(echo):
    bodies = [{"messages": [{"role": "user", "content": str(i)}]} for i in range(8)]
    echo.others = 7
    with Clients(2) as clients:
        for at_once in (2, 3):
            echo.calls, echo.answered = [], 0
            _, answers = clients.answers(echo.url, bodies, at_once)
            assert [each.text for each in answers] == [str(i) for i in range(8)]
            assert echo.calls == ["GET"] * at_once + ["POST"] * 8
    assert not echo.waited_in_vain


def test_no_cell_begins_after_the_limit(echo, call, tmp_path, monkeypatch, capsys):
    requests, out = tmp_path / "requests.jsonl.gz", tmp_path / "rows.jsonl"
    rows = [{"set": name, "messages": [{"content": name}]} for name in ("chat", "rag")]
    requests.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    words = ["run", "--requests", requests, "--out", out, "--concurrency", 1, 2]
    words += [f"--server=one={echo.url}"]
    ticks = count()
    monkeypatch.setattr(side_by_side, "monotonic", lambda: next(ticks))
    assert not call(*words, "--limit-seconds", 6)
    measured = [(row["set"], row["concurrency"], row["repeat"]) for row in read_results(out).rows]
    first = [(name, many, 0) for many in (1, 2) for name in ("chat", "rag")]
    assert measured == [*first, ("chat", 1, 1)]
    left_out = "left out after 6 s: rag 1 repeat 1, chat 2 repeat 1, rag 2 repeat 1"
    assert left_out in capsys.readouterr().out.splitlines()


def test_a_server_that_fails_is_left_out(echo, call, tmp_path, capsys):
    requests = tmp_path / "requests.jsonl.gz"
    row = {"set": "all", "messages": [{"role": "user", "content": "7"}]}
    requests.write_bytes(gzip.compress(json.dumps(row).encode() + b"\n"))
    sent = ["--requests", requests, "--repeats", 1, "--concurrency", 1, 2, "--waves", 1]
    servers = [f"--server=one={echo.url}", f"--server=other={echo.url}/failing"]
    assert call("run", *sent, *servers, "--out", tmp_path / "rows.jsonl") == 1
    assert {row["server"] for row in read_results(tmp_path / "rows.jsonl").rows} == {"one"}
    shown = capsys.readouterr()
    assert "other failed: " in shown.out
    assert "all 2 repeat 0: one " in shown.out
    assert shown.err.startswith("error: other failed: ")
