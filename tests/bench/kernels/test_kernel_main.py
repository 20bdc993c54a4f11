"""The entry for machines with little more than torch."""

import subprocess
import sys
from pathlib import Path

from made_up_figures import save, some_figures

BARE = """
import runpy, sys
for name in ("typer", "rich", "matplotlib"):
    sys.modules[name] = None
runpy.run_module("graft.bench.kernels", run_name="__main__", alter_sys=True)
"""
ROOT = Path(__file__).parents[3]


def test_it_needs_neither_typer_nor_rich_nor_matplotlib(tmp_path):
    save(some_figures(), tmp_path / "kernels.jsonl")
    words = ["--from", "kernels.jsonl", "--plot", "plot.png"]
    done = subprocess.run(
        [sys.executable, "-c", BARE, *words],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "| 4,096 | 8 | 0.0500 | 0.200 |" in done.stdout
    assert done.stderr.startswith("error: the plot needs matplotlib")
