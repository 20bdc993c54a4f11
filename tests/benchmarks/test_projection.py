"""Paper scale from a few layers: the formula by hand, and toy shapes measured on the CPU."""

import sys

import pytest

from benchmarks.kernels import projection
from graft.bench.result_file import read_results
from graft.errors import InputError

SMALL, LARGE = "4/2/16/4/64/128/128", "8/2/16/6/128/256/128"


def test_acceptance_is_turned_into_a_probability_and_back():
    for rate in (0.0, 0.3, 0.65, 0.8, 1.0):
        kept = projection.kept_probability(rate, 10)
        assert projection.accepted_tokens(kept, 10) / 10 == pytest.approx(rate, abs=1e-9)
    assert projection.accepted_tokens(0.5, 3) == 0.875
    with pytest.raises(InputError, match="from 0 to 1"):
        projection.kept_probability(62, 10)


def test_a_speed_up_by_hand():
    """All accepted: 11 tokens for ten drafts of a tenth of a step and a check of 1.5 steps."""
    made = projection.Projection("t", "d", 1, 1, 10, plain=1.0, draft=0.1, check=1.5)
    assert made.speed_up(1.0) == pytest.approx(11 / 2.5)
    assert made.speed_up(0.0) == pytest.approx(1 / 2.5)


def test_layers_are_scaled_and_the_rest_is_not():
    shape = projection.read_shape(LARGE)
    steps = {(LARGE, 2, 24, 1): 5.0 + 2 * 0.5, (LARGE, 4, 24, 1): 5.0 + 4 * 0.5}
    assert projection.whole(steps, shape, (2, 4), 24, 1) == pytest.approx(5 + 6 * 0.5)


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["projection.py", *map(str, words)])
    code = projection.main()
    return code, capsys.readouterr()


@pytest.mark.slow
def test_toy_shapes_are_measured_printed_resumed_and_drawn(monkeypatch, capsys, tmp_path):
    out, image = tmp_path / "p.jsonl", tmp_path / "p.png"
    words = ["--shapes", f"{SMALL},{LARGE}", "--layers", "1,2", "--contexts", "24,40"]
    words += ["--shorts", "8", "--gammas", "3", "--dtype", "fp32", "--device", "cpu"]
    words += ["--repeats", "1", "--out", out, "--acceptance", "ours=0.5"]
    code, printed = call(monkeypatch, capsys, *words)
    assert code == 0
    assert "projection, not a measurement" in printed.out
    assert "ours 50%" in printed.out
    assert printed.out.count(f"| {SMALL} | {LARGE} |") == 2  # upward, at two contexts
    steps = read_results(out).rows
    assert len(steps) == 2 * 2 * (2 * 2 + 1)  # shapes, layers, points
    assert all(step["seconds"] > 0 for step in steps)
    assert call(monkeypatch, capsys, *words)[0] == 0
    assert read_results(out).rows == steps  # nothing is measured twice
    pytest.importorskip("matplotlib")
    code, shown = call(monkeypatch, capsys, "--from", out, "--plot", image)
    assert code == 0
    assert image.read_bytes().startswith(b"\x89PNG")
    assert "ours" not in shown.out  # rates are arguments, not measurements


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--layers", "3"], "--layers takes two numbers"),
        (["--layers", "2,200"], "that every shape has"),
        (["--contexts", "much"], "no list of whole numbers"),
        (["--acceptance", "ours"], "NAME=RATE"),
    ],
)
def test_wrong_options_are_one_line(monkeypatch, capsys, tmp_path, words, says):
    out = tmp_path / "p.jsonl"
    code, printed = call(monkeypatch, capsys, "--out", out, *words)
    assert code == 1
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert not out.exists()


def test_lines_of_another_model_are_refused(monkeypatch, capsys, tmp_path):
    out = tmp_path / "p.jsonl"
    words = ["--layers", "1,2", "--contexts", "24", "--shorts", "8", "--gammas", "3"]
    words += ["--dtype", "fp32", "--device", "cpu", "--repeats", "1", "--out", out]
    assert call(monkeypatch, capsys, "--shapes", SMALL, *words)[0] == 0
    code, printed = call(monkeypatch, capsys, "--shapes", LARGE, *words)
    assert code == 1
    assert "choose another --out" in printed.err
