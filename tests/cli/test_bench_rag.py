"""`graft bench --suite rag`: its options and what it refuses."""

import pytest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "rag"], "rag needs --data"),
        (["--suite", "rag", "--draft", "pld"], "no --draft; use --way REUSE:DRAFT"),
        (["--suite", "rag", "--batch", "4"], "no --batch"),
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
