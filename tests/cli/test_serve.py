"""`graft serve`: its options reach the engine and the server."""

import socket

import pytest

import graft.server.preload
import graft.server.run
from graft.cli.serve import LOOPBACK, ServeOptions
from graft.documents.prompt import AUTO_TOKENS
from graft.home import home
from graft.match.pool import PoolOptions
from graft.server.settings import ServerSettings


@pytest.fixture
def served(monkeypatch):
    """The arguments of `run_server`."""
    calls = []
    monkeypatch.setattr(graft.server.run, "run_server", lambda *given: calls.append(given))
    monkeypatch.delenv("GRAFT_API_KEY", raising=False)
    return calls


def settings_of(served):
    [(_, settings, listening)] = served
    listening.close()
    return settings


def test_options_reach_engine_and_server(cli, engine, served):
    done = cli(
        "serve", "some/model", "--port", 0, "--draft", "pld", "--max-batch", 3, "--api-key", "a",
        "--api-key", "b", "--timeout", 9, "--max-waiting", 2, "--served-model-name", "own",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    [(name, loading)] = engine.loaded
    assert (name, loading["draft"], loading["max_batch"]) == ("some/model", "pld", 3)
    settings = settings_of(served)
    assert settings.api_keys == ("a", "b")
    assert (settings.timeout, settings.max_waiting, settings.name) == (9, 2, "own")


def test_model_options_are_those_of_other_commands(cli, engine, served):
    done = cli(
        "serve", "--port", 0, "--draft", "rapid", "--retriever", "hybrid", "--verifier", "rapid",
        "--eta", 3, "--context-length", "4k",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    [(_, loading)] = engine.loaded
    assert (loading["context_length"], loading["retriever"]) == (4096, "hybrid")
    assert (loading["verifier"], loading["shift"].eta) == ("rapid", 3)
    assert loading.get("warm", True)
    settings_of(served)


def test_wrong_options_are_refused_before_loading(cli, engine, served):
    done = cli("serve", "--port", 0, "--verifier", "rapid")
    assert done.exit_code == 1
    assert "--draft" in done.stderr
    assert not engine.loaded


def test_config_number_may_be_a_string_option(cli, engine, served, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("port: 0\ncontext-length: 1024\n")
    done = cli("serve", "--config", file)
    assert done.exit_code == 0, done.output
    assert engine.loaded[0][1]["context_length"] == 1024
    settings_of(served)


def test_defaults_are_the_servers_own():
    settings = ServeOptions(corpora_folder="none").settings()
    assert settings == ServerSettings(hosts=LOOPBACK, options=settings.options)
    assert ServeOptions().host == "127.0.0.1"


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ({}, "corpora/8000"),
        ({"port": 9}, "corpora/9"),
        ({"port": 0}, None),
        ({"port": 0, "corpora_folder": "/kept"}, "/kept"),
        ({"corpora_folder": "none"}, None),
    ],
)
def test_uploads_are_kept_by_port(options, folder):
    assert ServeOptions(**options).settings().corpora_folder == (folder and home() / folder)


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ({"host": "127.0.0.2"}, (*LOOPBACK, "127.0.0.2")),
        ({"host": "0.0.0.0"}, ()),
        ({"host": "graft.example"}, ()),
        ({"allowed_host": ["graft.example"]}, (*LOOPBACK, "graft.example")),
        ({"host": "10.0.0.1", "allowed_host": ["a.b"]}, (*LOOPBACK, "10.0.0.1", "a.b")),
    ],
)
def test_loopback_server_accepts_its_own_host_names_only(options, hosts):
    assert ServeOptions(**options).settings().hosts == hosts


@pytest.mark.parametrize("name", ["", "a.b:80", "http://a.b"])
def test_an_allowed_host_is_a_name(cli, engine, served, name):
    done = cli("serve", "--port", 0, "--allowed-host", name)
    assert done.exit_code == 1
    assert "without a port" in done.stderr


def test_command_line_overrides_the_config_file(cli, engine, served, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("model: some/model\nport: 0\nmax-batch: 5\ndraft: copy\napi_key: [a, b]\n")
    done = cli("serve", "--config", file, "--draft", "pld")
    assert done.exit_code == 0, done.output
    [(name, loading)] = engine.loaded
    assert (name, loading["draft"], loading["max_batch"]) == ("some/model", "pld", 5)
    assert settings_of(served).api_keys == ("a", "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense: 1", "'nonsense'"),
        ("port: many", "port"),
        ("max_batch: 0", "max_batch"),
        ("- a", "must hold options"),
        ("a: [", "cannot read"),
    ],
)
def test_wrong_config_file_is_refused_in_one_line(cli, engine, served, tmp_path, content, message):
    file = tmp_path / "serve.yaml"
    file.write_text(content)
    done = cli("serve", "--config", file)
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not engine.loaded


def test_keys_may_come_from_the_environment(cli, engine, served, monkeypatch):
    monkeypatch.setenv("GRAFT_API_KEY", "one,two")
    assert cli("serve", "--port", 0).exit_code == 0
    assert settings_of(served).api_keys == ("one", "two")


def test_server_without_an_api_key_is_warned_of(cli, engine, served):
    done = cli("serve", "--port", 0, "--host", "0.0.0.0")
    assert "without an API key" in done.stderr
    settings_of(served)


def test_port_in_use_is_refused_before_loading(cli, engine, served):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = cli("serve", "--port", taken.getsockname()[1])
    assert done.exit_code == 1
    assert "choose another" in done.stderr
    assert not engine.loaded


def test_corpus_is_read_before_loading(cli, engine, served, document):
    refused = cli("serve", "--port", 0, "--corpus", "nowhere.md")
    assert refused.exit_code == 1
    assert "nowhere.md" in refused.stderr
    assert not engine.loaded
    assert cli("serve", "--port", 0, "--corpus", document).exit_code == 0
    assert [each.name for each in settings_of(served).corpus] == ["contract.md"]


def test_preload_needs_a_corpus_and_keeps_it_on_disk(cli, engine, served, document, monkeypatch):
    calls = []
    monkeypatch.setattr(graft.server.preload, "preload", lambda *given: calls.append(given))
    refused = cli("serve", "--port", 0, "--preload")
    assert "--preload needs a corpus" in refused.stderr
    done = cli("serve", "--port", 0, "--preload", "--corpus", document, "--context", "auto")
    assert done.exit_code == 0, done.output
    assert "nothing to preload" in done.stderr
    assert engine.loaded[0][1]["disk_cache"] > 0
    [(_, settings, _)] = calls
    assert settings_of(served) == settings
    assert settings.document_tokens == AUTO_TOKENS


def test_an_unknown_context_is_refused_before_loading(cli, engine, served, document):
    for command in ("serve", "run"):
        refused = cli(command, "x", "--context", "half")
        assert (refused.exit_code, refused.stderr) == (
            1,
            "error: unknown context 'half'; choose full or auto\n",
        )
    both = cli("run", "x", "--doc", document, "--context", "auto", "--full")
    assert "contradict" in both.stderr
    assert not engine.loaded


@pytest.mark.parametrize("command", ["serve", "chat"])
def test_pool_is_a_choice_of_serve_and_chat(cli, engine, served, command, tmp_path):
    more = ("--port", 0) if command == "serve" else ()
    for given in ((), ("--pool", "off"), ("--pool", "memory")):
        assert cli(command, *more, *given, stdin="").exit_code == 0
    kept = ("--pool", tmp_path / "pool", "--pool-tokens", "1m", "--pool-prompts")
    assert cli(command, *more, *kept, stdin="").exit_code == 0
    loaded = [options["pool"] for _, options in engine.loaded]
    folder = PoolOptions(str(tmp_path / "pool"), max_tokens=1 << 20, prompts=True)
    assert loaded == [False, False, PoolOptions(), folder]
    wrong = cli(command, *more, "--pool-tokens", "many", stdin="")
    assert wrong.exit_code == 1
    assert "--pool-tokens" in wrong.stderr
    assert len(engine.loaded) == 4
