"""`graft bench --suite rag`: its options and what it refuses."""

import json

import pytest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "rag"], "rag needs --data"),
        (["--suite", "rag", "--draft", "pld"], "no --draft; use --way REUSE:DRAFT"),
        (["--suite", "rag", "--batch", "4"], "no --batch"),
        (["--suite", "rag", "--quality", "likelihood"], "no --quality"),
        (["--suite", "rag", "--load-options", '{"x": 1}'], "graft.load does not take"),
        (["--suite", "rag", "--groups", "2"], "no --groups"),
        (["--suite", "rag", "--way", "cics+some:igpg"], "'some' in reuse"),
        (["--suite", "rag", "--policy", "x"], "unknown policy 'x'"),
        (["--suite", "rag", "--way", "off"], "write REUSE:DRAFT"),
        (["--suite", "rag", "--baseline", "exact:pld"], "not among --way"),
        (["--policy", "fl"], "belong to --suite rag"),
    ],
)
def test_refused_in_one_line(cli, tmp_path, words, message):
    done = cli("bench", "--out", tmp_path / "out.jsonl", *words)
    assert done.exit_code == 1
    assert message in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_a_result_file_is_told_again(cli, tmp_path):
    header = {
        "record": "header", "format": 1, "date": "2026-11-15", "versions": {"graft": "0"},
        "hardware": {"gpus": [], "cpu": "some CPU"}, "corpora": {"2wiki": 7},
        "fixed": {"suite": "rag", "model": "tiny", "dtype": "fp32", "threads": 1},
        "options": {"ways": ["off:plain"]},
    }  # fmt: skip
    answer = {
        "record": "answer", "set": "2wiki", "question": 1, "policy": "fl", "way": "off:plain",
        "repeat": 0, "session": 0, "exact": 1.0, "f1": 1.0, "total_seconds": 2.0, "language": "b",
    }  # fmt: skip
    file = tmp_path / "rag.jsonl"
    file.write_text(f"{json.dumps(header)}\n{json.dumps(answer)}\n")
    done = cli("bench", "report", file)
    assert done.exit_code == 0, done.output
    assert "100.0" in done.stdout
    assert "2wiki 7" in done.stdout
    told = json.loads(cli("bench", "report", file, "--json").stdout)
    assert told["rows"][0]["seconds"]["total"] == 2.0
    assert cli("bench", "report", file, "--plot", tmp_path / "x.png").exit_code == 1
