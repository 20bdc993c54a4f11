"""`graft run` uses a running server of the same model and options, with the same text."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from serving import serving
from tiny import tiny_engine

import graft
from graft.cli import resident
from graft.cli.documents import report_selection
from graft.cli.options import AnswerOptions
from graft.cli.resident import find_server, options_of
from graft.decode.document_prompt import document_prompt
from graft.documents import Document
from graft.home import home
from graft.models.checkpoints import pretrained
from graft.sampling import SamplingParams
from graft.server.announce import announce, running_servers

QUESTION = "where is the zebra"
FILLER = "there is not much to see in this line of the text.\n\n"
SAMPLED = ("--max-tokens", 24, "--temperature", 0.5, "--seed", 7)
OPTIONS = options_of(AnswerOptions(), "full")


@pytest.fixture
def local(monkeypatch):
    """An engine that `graft run` loads; `loads` counts."""
    engine = tiny_engine()
    engine.load_seconds, engine.loads = 1.0, 0
    fingerprint = engine.loaded.checkpoint.fingerprint

    def load(name, **options):
        engine.loads += 1
        return engine

    monkeypatch.setattr(graft, "load", load, raising=False)
    monkeypatch.setattr(pretrained, "locate", lambda name: SimpleNamespace(fingerprint=fingerprint))
    monkeypatch.delenv("GRAFT_API_KEY", raising=False)
    return engine


@contextmanager
def served(**settings):
    """A server that was announced."""
    engine = tiny_engine(max_batch=2)
    engine.model.prefixes.use(max_rows=20_000)
    settings = {"options": OPTIONS, **settings}
    with serving(engine, **settings) as running:
        while settings["options"] and not states():
            time.sleep(0.01)
        yield running


def states():
    return list((home() / "servers").glob("*.json"))


@pytest.fixture
def documents(tmp_path):
    (tmp_path / "zoo.md").write_text("the zebra lives on the river near the inn. " * 9)
    (tmp_path / "long.txt").write_text(FILLER * 30 + "the zebra lives here.\n" + FILLER * 30)
    return tmp_path


@pytest.mark.parametrize("name", [None, "zoo.md", "long.txt"])
def test_text_and_footer_are_those_of_a_loaded_model(cli, local, documents, name):
    chosen = ("--doc", documents / name) if name else ()
    with served(corpus=(Document("other.md", "the lift"),)) as running:
        there = cli("run", QUESTION, *chosen, *SAMPLED)
        assert (there.exit_code, local.loads) == (0, 0), there.output
        here = cli("run", QUESTION, *chosen, *SAMPLED, "--no-server")
        coloured = cli("run", QUESTION, *chosen, *SAMPLED, "--color")
    assert local.loads == 1
    assert here.stdout == there.stdout != "\n"
    assert f"by the server at {running.url}" in there.stderr
    assert "by the server" not in here.stderr
    assert there.stderr.split(" · ")[0] == here.stderr.replace("load 1.0 s", "").split(" · ")[0]
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured.stdout) == there.stdout
    if name == "long.txt":
        assert there.stderr.splitlines()[0] == here.stderr.splitlines()[0]
        assert "passages" in there.stderr


def test_server_is_announced_while_it_runs(local):
    with served() as running:
        [server] = running_servers()
        assert (server.url, server.pid) == (running.url, os.getpid())
        assert find_server(AnswerOptions(), None) == server
        assert find_server(AnswerOptions(kv_cache=1.0), None) == server
    assert states() == []
    with served(options=None):
        assert states() == []


@pytest.mark.parametrize(
    "options",
    [{"dtype": "bf16"}, {"context_length": "1k"}, {"draft": "plain"}, {"verifier": "rejection"},
     {"doc": ["a"], "context": "auto"}, {"invariant": True}, {"kv_cache_dtype": "fp16"}],
)  # fmt: skip
def test_another_option_is_another_answer(local, options):
    with served():
        chosen = AnswerOptions(**options)
        assert find_server(chosen, chosen.context if chosen.doc else None) is None
        assert len(states()) == 1


def test_another_model_version_or_machine_is_not_used(local, monkeypatch):
    with served():
        [server] = running_servers()
        for change in ({"fingerprint": "x"}, {"version": "0"}):
            announce(replace(server, **change))
            assert find_server(AnswerOptions(), None) is None
        announce(server)
        assert find_server(AnswerOptions(), None) == server
        monkeypatch.setattr("platform.node", lambda: "elsewhere")
        assert find_server(AnswerOptions(), None) is None


def test_key_is_taken_from_the_environment(cli, local, monkeypatch):
    with served(api_keys=("first", "second")):
        assert find_server(AnswerOptions(), None) is None
        monkeypatch.setenv("GRAFT_API_KEY", "second")
        assert cli("run", QUESTION, *SAMPLED).exit_code == 0
        assert local.loads == 0
        monkeypatch.setenv("GRAFT_API_KEY", "wrong")
        assert cli("run", QUESTION, *SAMPLED).exit_code == 0
        assert local.loads == 1


def test_stale_files_are_ignored_and_removed(cli, local):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with served():
        [server] = running_servers()
        announce(replace(server, pid=ended.pid))  # of a killed server
        assert find_server(AnswerOptions(), None) == server
        assert len(states()) == 1
        announce(replace(server, instance="another"))  # its port belongs to another server
        assert find_server(AnswerOptions(), None) is None
        assert states() == []
    announce(server)  # nothing listens
    (home() / "servers" / f"{server.machine}-1.json").write_text("{")
    done = cli("run", QUESTION, *SAMPLED)
    assert (done.exit_code, local.loads) == (0, 1)
    assert [each.name for each in states()] == [f"{server.machine}-1.json"]


def test_refused_request_is_answered_here(cli, local):
    with served(max_document_characters=10):
        done = cli("run", QUESTION, "--doc", __file__, *SAMPLED)
    assert local.loads == 1
    assert "by the server" not in done.stderr


def test_failure_during_the_answer_is_one_line(cli, local, monkeypatch):
    with served() as running:

        def fail():
            raise RuntimeError("broken")

        monkeypatch.setattr(running.engine.loop, "step", fail)
        done = cli("run", QUESTION, *SAMPLED)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: the server at {running.url} failed: ")
    assert "--no-server" in done.stderr


@pytest.mark.parametrize("option", ["--json", "--compare", "--full"])
def test_options_that_need_the_model_load_it(cli, local, option):
    with served():
        assert cli("run", QUESTION, *SAMPLED, option).exit_code == 0
    assert local.loads == 1


def test_asking_a_server_imports_no_torch():
    code = "import sys, graft.cli.resident, graft.cli.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_streams_and_responses_have_the_selection(local):
    with served() as running:
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4,
                "documents": [{"title": "a", "text": FILLER * 60}]}  # fmt: skip
        whole = httpx.post(f"{running.url}/v1/chat/completions", json=body).json()["documents"]
        lines = httpx.post(f"{running.url}/v1/chat/completions", json={**body, "stream": True})
    first = next(line for line in lines.text.splitlines() if line.startswith("data: "))
    assert json.loads(first[6:])["documents"] == whole
    params = SamplingParams(max_tokens=4)
    prompt = document_prompt(local, QUESTION, [Document("a", FILLER * 60)], params)
    assert whole == prompt.as_dict()
    assert report_selection(prompt, local, [Document("a", "")]) is None


def test_chat_has_the_answers_of_a_loaded_model(cli, local, documents):
    turns = f"{QUESTION}\nand the inn?\n/reset\n{QUESTION}\n"
    command = ("chat", "--doc", documents / "zoo.md", *SAMPLED)
    with served() as running:
        there = cli(*command, stdin=turns)
        assert (there.exit_code, local.loads) == (0, 0), there.output
        here = cli(*command, "--no-server", stdin=turns)
    assert local.loads == 1
    assert here.stdout == there.stdout
    assert there.stdout.count("\n") >= 3
    assert there.stderr.count(f"by the server at {running.url}") == 3


@pytest.mark.parametrize(
    ("name", "options"), [("long.txt", ()), ("zoo.md", ("--full",)), (None, ("--color",))]
)
def test_chat_loads_the_model_only_to_select_passages(cli, local, documents, name, options):
    chosen = ("--doc", documents / name) if name else ()
    with served():
        done = cli("chat", *chosen, *options, *SAMPLED, stdin=f"{QUESTION}\n")
    assert done.exit_code == 0, done.output
    assert local.loads == (name == "long.txt")


def test_chat_goes_on_with_the_model_when_the_server_is_gone(cli, local, monkeypatch):
    with served():
        monkeypatch.setattr(resident.Reader, "answer", lambda self, body: None)
        done = cli("chat", *SAMPLED, stdin=f"{QUESTION}\n{QUESTION}\n")
    assert done.exit_code == 0
    assert local.loads == 1
    assert "by the server" not in done.stderr


@pytest.mark.parametrize("policy", ["fs", "flare"])
def test_ask_has_the_answer_of_a_loaded_model(cli, local, documents, policy):
    command = ("ask", QUESTION, "--corpus", documents, "--policy", policy, *SAMPLED)
    with served(corpus=(Document("other.md", "the lift"),)) as running:
        there = cli(*command)
        assert (there.exit_code, local.loads) == (0, 0), there.output
        here = cli(*command, "--no-server")
    assert local.loads == 1
    assert here.stdout == there.stdout != "\n"
    assert f"by the server at {running.url}" in there.stderr
    assert there.stderr.split(" · ")[:2] == here.stderr.split(" · ")[:2]


@pytest.mark.parametrize(
    "option",
    [("--json",), ("--show-rounds",), ("--reuse", "off"), ("--guide",), ("--corpus", "rows.jsonl")],
)
def test_options_of_ask_that_need_the_model_load_it(cli, local, documents, option, monkeypatch):
    monkeypatch.chdir(documents)
    (documents / "rows.jsonl").write_text('{"text": "the zebra lives on the river"}\n')
    with served():
        done = cli("ask", QUESTION, "--corpus", "zoo.md", "--policy", "fs", *SAMPLED, *option)
    assert done.exit_code == 0, done.output
    assert local.loads == 1
