import json

import pytest
from made_up_figures import save, some_figures

from graft.bench.kernels import run as run_module

TINY = "--device cpu --shape 4/2/16/2/64/128/128 --contexts 24 --nodes 4 --repeats 1"


@pytest.fixture
def file(tmp_path):
    save(some_figures(), tmp_path / "kernels.jsonl")
    return tmp_path / "kernels.jsonl"


def test_a_file_is_shown_again(cli, file):
    done = cli("bench", "kernels", "--from", file)
    assert done.exit_code == 0, done.output
    assert "attention of one layer, ms" in done.stdout
    assert "whole steps, random weights: llama-8b" in done.stdout
    assert "note: sdpa cudnn, mask: no such kernel" in done.stdout
    assert "| 4,096 | 1 |" in cli("bench", "kernels", "--from", file, "--markdown").stdout
    told = json.loads(cli("bench", "kernels", "--from", file, "--json").stdout)
    assert told["memory"]["cache"] == 512 << 20


def test_a_file_is_drawn_later(cli, file, tmp_path):
    pytest.importorskip("matplotlib")
    done = cli("bench", "kernels", "--from", file, "--plot", tmp_path / "kernels.png")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "kernels.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_measured_written_and_shown(cli, tmp_path):
    out = tmp_path / "kernels.jsonl"
    done = cli("bench", "kernels", *TINY.split(), "--only", "attention", "--out", out)
    assert done.exit_code == 0, done.output
    assert "attention of one layer, ms" in done.stdout
    assert json.loads(out.read_text().splitlines()[1])["what"] == "panels"


def test_an_interruption_shows_what_was_measured(cli, tmp_path, monkeypatch):
    def stops(settings, journal, watch):
        journal.header(some_figures().sessions[0])
        journal.figure(next(iter(some_figures().figures.values())))
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "run", stops)
    out = tmp_path / "kernels.jsonl"
    done = cli("bench", "kernels", *TINY.split(), "--out", out)
    assert done.exit_code == 130
    assert "attention of one layer" in done.stdout
    assert f"stopped; the same command goes on ({out})" in done.stderr
    assert len(out.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--shape gpt-9", "unknown shape 'gpt-9'; choose from smollm2"),
        ("--only memory", "--only is attention or steps, not 'memory'"),
        ("--device cuda:77", "no CUDA device is usable here"),
        ("--from nowhere.jsonl", "nowhere.jsonl cannot be read"),
        ("--from a.jsonl --out b.jsonl", "--from shows a file and --out measures"),
    ],
)
def test_what_cannot_be_done_is_one_line(cli, tmp_path, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = cli("bench", "kernels", *words.split())
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
