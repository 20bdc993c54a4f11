"""No change makes drafting worse by machine-independent figures without saying so.

`guard/figures.json` holds what the code did when it was last written (`make figures`).
"""

import json
import warnings

import pytest
from guard import figures

# Figures that should be high; all others should be low.
HIGH = {"tokens per step", "speed-up"}
TOLERANCE = {"operations per step": 0.03, "tensors per step": 0.03, "peak bytes per step": 0.25}
USUAL = 0.01


def worsening(figure, before, now):
    """By how much of itself a figure is worse than it was; negative where it is better."""
    if before == now:
        return 0.0
    change = (now - before) / max(abs(before), 1e-9)
    return -change if figure in HIGH else change


def judged(kept, found):
    """What is worse by more than is tolerated, and what is better."""
    worse, better = [], []
    for name, before in kept.items():
        for figure, value in before.items():
            change = worsening(figure, value, found[name][figure])
            line = f"{name}, {figure}: {found[name][figure]:.4g}, was {value:.4g}"
            limit = TOLERANCE.get(figure, USUAL)
            if change > limit:
                worse.append(line)
            elif change < -limit:
                better.append(line)
    return worse, better


@pytest.mark.parametrize("measure", [figures.replay_figures, figures.step_figures])
def test_no_figure_is_worse(one_thread, measure):
    kept = json.loads(figures.FIGURES.read_text())
    found = measure()
    worse, better = judged({name: kept[name] for name in found}, found)
    assert not worse, "worse; if it must be so, run make figures: " + "; ".join(worse)
    if better:
        warnings.warn("better; keep it with make figures: " + "; ".join(better), stacklevel=1)


def test_every_figure_is_kept():
    kept = json.loads(figures.FIGURES.read_text())
    replayed = [f"replayed {draft}" for draft in figures.REPLAYED]
    assert list(kept) == [*replayed, *(f"answered {draft}" for draft in figures.ANSWERED)]


@pytest.mark.parametrize(
    ("figure", "before", "now", "verdict"),
    [
        ("tokens per step", 2.0, 1.9, "worse"),
        ("tokens per step", 2.0, 2.1, "better"),
        ("tokens per step", 2.0, 1.999, "same"),
        ("lookups per step", 1.0, 1.1, "worse"),
        ("operations per step", 100, 102, "same"),
        ("operations per step", 0, 1, "worse"),
        ("peak bytes per step", 1000, 2000, "worse"),
        ("nodes per step", 5.0, 4.0, "better"),
    ],
)
def test_the_guard_can_tell(figure, before, now, verdict):
    worse, better = judged({"preset": {figure: before}}, {"preset": {figure: now}})
    assert (bool(worse), bool(better)) == (verdict == "worse", verdict == "better")
