"""Draw docs/figures: tokens per step of heads against context, loss with and without offsets.

    python benchmarks/head_figures.py results docs/figures

From the files that docs/results.md names ("Draft heads"). Needs matplotlib.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

SUITES = {"qmsum": "QMSum", "leval": "government reports", "multi_news": "Multi-News"}
COLORS = {"eagle2": "C0", "longspec": "C1", "rasd-pld": "C2", "auto": "C3"}
RUNS = {"anchor": "anchor-offset positions", "vanilla": "positions as they are"}


def main() -> None:
    """Write both figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("figures", type=Path)
    options = parser.parse_args()
    options.figures.mkdir(parents=True, exist_ok=True)
    _against_context(options.results, options.figures / "heads_context.png")
    _losses(options.results, options.figures / "heads_anchor.png")


def _against_context(results: Path, path: Path) -> None:
    figure, panels = plt.subplots(1, len(SUITES), figsize=(11, 3.4), sharey=True)
    for panel, (suite, title) in zip(panels, SUITES.items(), strict=True):
        answers = [
            line
            for line in _lines(results / f"heads_h200_bf16_{suite}.jsonl")
            if line["record"] == "answer"
        ]
        for system, color in COLORS.items():
            gains = _gains([each for each in answers if each["system"] == system])
            panel.plot(list(gains), list(gains.values()), color, marker="o", label=system)
        panel.set_title(title)
        panel.set_xscale("log", base=2)
        panel.set_xlim(900, 9300)
        panel.set_xticks([1024, 4096, 8192], ["1K", "4K", "8K"])
        panel.minorticks_off()
        panel.set_xlabel("context, tokens")
    panels[0].set_ylabel("tokens per step")
    panels[0].set_ylim(1, 6)
    panels[-1].legend()
    _save(figure, path)


def _gains(answers: list[dict]) -> dict[int, float]:
    """Tokens per step by context, ascending."""
    by_context = defaultdict(list)
    for answer in answers:
        by_context[answer["context"]].append(answer)
    return {
        context: sum(each["tokens"] - each["first_tokens"] for each in some)
        / sum(each["steps"] for each in some)
        for context, some in sorted(by_context.items())
    }


def _losses(results: Path, path: Path) -> None:
    figure, panel = plt.subplots(figsize=(5, 3.2))
    for name, label in RUNS.items():
        notes = [line for line in _lines(results / f"train_smollm2_{name}.jsonl") if "loss" in line]
        panel.plot([note["step"] for note in notes], [note["loss"] for note in notes], label=label)
    panel.set_xlabel("step")
    panel.set_ylabel("loss")
    panel.set_title("LongSpec, rows of 1,024 tokens")
    panel.legend()
    _save(figure, path)


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _save(figure: plt.Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
