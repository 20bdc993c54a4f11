"""`graft train`."""

import json
import subprocess
import sys

import pytest
from tiny import save_tiny


def graft(*words):
    return subprocess.run(
        [sys.executable, "-m", "graft", "train", *words], capture_output=True, text=True
    )


@pytest.mark.slow
def test_head_is_trained_and_training_resumes(tmp_path):
    save_tiny(tmp_path / "target")
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": f"text {n} of the end"}) + "\n" for n in range(60)))
    words = ["longspec", "--data", str(data), "--model", str(tmp_path / "target"), "--device"]
    words += ["cpu", "--length", "32", "--batch", "2", "--held-out", "0.1", "--out"]
    done = graft(*words, str(tmp_path / "head"), "--steps", "3", "--vanilla-positions")
    assert done.returncode == 0, done.stderr
    assert "tokens per step" in done.stderr
    assert f"head: {tmp_path / 'head'}" in done.stderr
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["speculators_model_type"] == "longspec"
    more = graft(*words, str(tmp_path / "head"), "--steps", "4", "--vanilla-positions")
    assert "going on after step 3" in more.stderr


@pytest.mark.parametrize(
    "words",
    [
        "medusa --data x --out y --steps 1",
        "mtp --data x --out y --steps 1",
        "eagle2 --data x --out y",
        "eagle2 --data no.txt --out y --steps 1",
    ],
)
def test_wrong_options_are_refused_in_one_line(cli, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    failed = cli("train", *words.split())
    assert failed.exit_code == 1
    assert failed.stderr.startswith("error:")
    assert failed.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
