"""Long documents: QMSum, Multi-News, L-Eval and LongBench v2 together, a category for each.

`--data` is a folder with a folder for each set, as their own suites take it: `qmsum`, `multi_news`
(or `longbench_v1`, which holds it), `leval`, `longbench_v2`. The suites of these names measure one
set alone, with its own categories.
"""

from dataclasses import replace
from pathlib import Path

from benchmarks.suites import leval, longbench_v2, multi_news, qmsum
from benchmarks.suites.task import Prompt
from graft.errors import InputError

SETS = {
    "qmsum": (qmsum, ("qmsum",)),
    "multi_news": (multi_news, ("multi_news", "longbench_v1", "longbench")),
    "leval": (leval, ("leval",)),
    "longbench_v2": (longbench_v2, ("longbench_v2",)),
}


def read(data: Path | None) -> list[Prompt]:
    """The prompts of all four; a prompt stays in the half that its own suite puts it in."""
    if data is None or not data.is_dir():
        raise InputError(f"long needs --data: a folder with the folders {', '.join(SETS)}")
    prompts: list[Prompt] = []
    for name, (suite, folders) in SETS.items():
        first = _even(max((prompt.number for prompt in prompts), default=0))
        prompts += [
            replace(prompt, number=first + prompt.number, category=name)
            for prompt in suite.read(_folder(data, name, folders))
        ]
    return prompts


def _even(number: int) -> int:
    """Numbers keep their parity, which decides their half."""
    return number + number % 2


def _folder(data: Path, name: str, folders: tuple[str, ...]) -> Path:
    known = [data / folder for folder in folders]
    found = next((folder for folder in known if folder.is_dir()), None)
    if found is None:
        raise InputError(
            f"{data} has no folder {' or '.join(folders)}; put {name} there, or measure the sets "
            "that you have one by one"
        )
    return found
