"""The entry for machines with little more than torch and transformers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_answers import HEADER, answer

from graft.bench import __main__ as entry
from graft.bench.records import open_results, read_results

ROOT = Path(__file__).parents[2]
BARE = """
import sys
for name in ("typer", "rich", "matplotlib", "scipy", "bm25s", "gguf", "html_to_markdown",
             "platformdirs", "pyarrow", "pypdfium2", "rouge_score", "torchao"):
    sys.modules[name] = None
"""


@pytest.fixture
def bare(tmp_path):
    """Python, and the workers it starts, without the packages above."""
    (tmp_path / "sitecustomize.py").write_text(BARE)
    added = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "GRAFT_COSTS": "reference"}
    environment = os.environ | added | {"GRAFT_HOME": str(tmp_path / "home")}

    def python(*words):
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert python("-c", "import rich").returncode != 0
    return python


@pytest.mark.slow
def test_a_whole_run_needs_no_more_than_torch_and_transformers(
    bare, tmp_path, tiny_folder, questions
):
    words = ["--data", questions, "--model", tiny_folder, "--max-tokens", "8", "--threads", "1"]
    words += ["--limit", "1", "--category", "rag,qa", "--dtype", "fp32", "--draft", "plain,pld"]
    done = bare("-m", "graft.bench", *map(str, words), "--out", "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert "4 measurements" in done.stderr
    assert done.stderr.endswith("answers: out.jsonl\n")
    assert "| all | 2 | pld |" in done.stdout
    assert "- no intervals: they need scipy" in done.stdout
    assert len(read_results(tmp_path / "out.jsonl").done()) == 4
    again = bare("-m", "graft.bench", "--from", "out.jsonl", "--baseline", "pld")
    assert "time of pld" in again.stdout


@pytest.fixture
def main(monkeypatch):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["graft.bench", *map(str, words)])
        return entry.main()

    return call


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "spec_bench needs --data"),
        (["--batch", "1,x"], "--batch takes whole numbers, separated by commas, not '1,x'"),
        (["--baseline", "hf"], "--baseline 'hf' is not among --draft and --peers"),
        (["--from", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_run_is_one_line(main, capsys, words, line):
    assert main(*words) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: {line}")
    assert told.count("\n") == 1


def test_every_option_of_the_command_is_taken(main, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(entry, "run", lambda settings, out, watch: asked.append((settings, out)))
    words = "--suite squad --data d --draft plain,pld --dtype fp32 --temperature 0,1 --batch 1,4 "
    words += (
        "--limit 2 --split all --category rag --max-tokens 9 --repeats 3 --model tiny --context 4K"
    )
    monkeypatch.chdir(tmp_path)
    assert main(*words.split()) == 1  # nothing was measured, so there is no file
    [(settings, out)] = asked
    assert out == Path("results/squad-tiny-fp32.jsonl")
    assert (settings.data, settings.drafts) == (Path("d"), ("plain", "pld"))
    assert (settings.temperatures, settings.batches) == ((0.0, 1.0), (1, 4))
    assert (settings.limit, settings.max_tokens, settings.repeats) == (2, 9, 3)
    assert settings.contexts == (4096,)


def test_exit_codes_tell_a_failed_system_and_an_interruption(main, monkeypatch, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    fixed = {"suite": "spec_bench", "model": "tiny", "dtype": "fp32", "max_tokens": 8, "threads": 2}
    about = {"hardware": {"cpu": "N1", "gpus": []}, "versions": {}, "fixed": fixed}
    with open_results(out) as (_, writer):
        writer.header({**HEADER, **about})
        writer.answer(answer(output="a"), [[1, 2]])
    monkeypatch.setattr(entry, "run", lambda settings, out, watch: False)
    assert main("--out", out) == 1
    assert "| qa | 1 | plain |" in capsys.readouterr().out

    def interrupted(settings, out, watch):
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "run", interrupted)
    assert main("--out", out) == 130
    assert f"stopped; the same command goes on ({out})" in capsys.readouterr().err
