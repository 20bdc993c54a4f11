import json

import pytest
from made_up_rows import pair, results

from graft.bench import run


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "What is it?"}\n')
    return path


@pytest.fixture
def measured(monkeypatch):
    """Replaces the measuring; returns the settings it got."""
    settings = []

    def bench(given, engine, progress):
        settings.append(given)
        progress.begin(2, 0)
        progress.show("plain")
        progress.say("a message")
        progress.advance()
        return results(*pair(1), *pair(2))

    monkeypatch.setattr(run, "bench", bench)
    return settings


def test_options_become_settings_and_the_table_is_shown(cli, engine, measured, prompts, tmp_path):
    words = "--draft plain,copy --temperature 0,1 --batch 1,4 --repeats 2 --limit 3 --max-tokens 9"
    words += " --engine vllm=/venv/bin/python --engine transformers"
    done = cli("bench", prompts, *words.split(), "--out", tmp_path / "out.jsonl")
    assert done.exit_code == 0, done.output
    assert "4.00" not in done.stdout
    assert "2.00 (2.00–2.00)" in done.stdout
    assert "Warning: auto (s, greedy): 2 prompts are too few" in done.stdout
    [settings] = measured
    assert (settings.drafts, settings.temperatures) == (("plain", "copy"), (0.0, 1.0))
    assert (settings.batches, settings.repeats, settings.limit) == ((1, 4), 2, 3)
    assert settings.engines == {"vllm": "/venv/bin/python", "transformers": ""}
    [(_, options)] = engine.loaded
    assert (options["draft"], options["max_batch"], options["prefix_cache"]) == ("copy", 4, 0)


def test_json_has_every_summary(cli, engine, measured, prompts):
    printed = json.loads(cli("bench", prompts, "--json").stdout)
    assert printed["baseline"] == "plain"
    assert [each["variant"] for each in printed["rows"]] == ["plain", "auto"]
    assert printed["rows"][1]["decode"]["mean"] == pytest.approx(2)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--draft magic", "unknown draft 'magic'"),
        ("--draft plain,sd", "draft 'sd' needs a draft model"),
        ("--draft ,", "--draft is empty"),
        ("--engine sglang", "unknown engine 'sglang'"),
        ("--engine llama.cpp", "llama.cpp needs --gguf"),
        ("--gguf nowhere.gguf", "nowhere.gguf does not exist"),
        ("--temperature 0,hot", "--temperature takes numbers, separated by commas, not '0,hot'"),
        ("--batch 0", "--batch is a whole number"),
        ("--limit 0", "--limit must be at least 1"),
        ("--dtype fp8", "unknown dtype 'fp8'"),
    ],
)
def test_wrong_options_are_one_line(cli, engine, prompts, words, line):
    done = cli("bench", prompts, *words.split())
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
    assert engine.loaded == []


def test_prompts_are_read_before_the_model_is_loaded(cli, engine, tmp_path):
    (tmp_path / "other.jsonl").write_text("{}\n")
    done = cli("bench", tmp_path / "other.jsonl")
    assert done.exit_code == 1
    assert "other.jsonl, line 1 is not" in done.stderr
    assert engine.loaded == []
