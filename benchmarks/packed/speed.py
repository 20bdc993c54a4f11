"""`python -m benchmarks.packed.speed FILE... --llama PYTHON`: both engines in turns, on one file.

Both are loaded and measured alternately, so that other work on the machine slows both alike. The
best round of each counts. PYTHON is the interpreter that has llama-cpp-python.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.rows import rows_file

WORKER = Path(__file__).parent / "worker.py"
ENGINES = ("graft", "llama.cpp")


class Worker:
    """An engine's process."""

    def __init__(self, engine: str, python: str, file: str, chosen: argparse.Namespace) -> None:
        tokens = str(chosen.prompt + 2 * chosen.new + 16)
        root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [python, str(WORKER), engine, file, str(chosen.threads), tokens],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": str(chosen.threads)},
        )  # fmt: skip

    def measure(self, work: str, count: int) -> dict[str, float]:
        """Seconds and memory of one piece of work."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{work} {count}\n")
        self._process.stdin.flush()
        while not (line := self._process.stdout.readline()).startswith("{"):
            if not line:
                raise SystemExit("the worker ended early")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def compare(file: str, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each engine: tokens per second, per second of all threads, and megabytes."""
    pythons = {"graft": sys.executable, "llama.cpp": chosen.llama}
    workers = {name: Worker(name, pythons[name], file, chosen) for name in ENGINES}
    best: dict[tuple[str, str, str], float] = {}
    memory: dict[str, dict[str, float]] = {}
    for _ in range(chosen.rounds):
        for work, count in (("prefill", chosen.prompt), ("decode", chosen.new)):
            for name, worker in workers.items():
                found = memory[name] = worker.measure(work, count)
                for clock in ("wall", "cpu"):
                    rate, place = count / found[clock], (name, work, clock)
                    best[place] = max(best.get(place, 0), rate)
    for worker in workers.values():
        worker.close()
    return [
        {"file": Path(file).name, "engine": name}
        | {f"{work}_{clock}": best[name, work, clock] for work in ("prefill", "decode")
           for clock in ("wall", "cpu")}
        | {key: memory[name][key] for key in ("peak_mb", "now_mb")}
        for name in ENGINES
    ]  # fmt: skip


def main() -> None:
    """Print a table; --out writes the rows as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--llama", required=True, help="interpreter with llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    write = sys.stdout.write
    write("| file | engine | prefill tok/s (per CPU s) | decode tok/s (per CPU s) | MB (peak) |\n")
    write("|---|---|--:|--:|--:|\n")
    with rows_file("packed", chosen) as out:
        for file in chosen.files:
            for row in compare(file, chosen):
                write(
                    f"| {row['file']} | {row['engine']} | {row['prefill_wall']:.1f} "
                    f"({row['prefill_cpu']:.1f}) | {row['decode_wall']:.2f} "
                    f"({row['decode_cpu']:.2f}) | {row['now_mb']:.0f} ({row['peak_mb']:.0f}) |\n"
                )
                sys.stdout.flush()
                out.row(row)


if __name__ == "__main__":
    main()
