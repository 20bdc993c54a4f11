"""What all compiled indexes share: no lock held, no reference counting."""

import re
import threading
from pathlib import Path

import numba
import numpy as np

import graft
from graft.match.hash_table import compiled

MAX_TURNS = 1 << 31  # of a loop: seconds


@compiled
def wait_for(flag, turns):
    """Spin until the flag is set; whether it was."""
    while flag[0] < 1 and turns[0] < MAX_TURNS:
        turns[0] += 1
    return flag[0] == 1


@compiled
def first_of(array):
    return array[0]


@compiled
def sum_first(arrays, index):
    total = 0
    for array in arrays:
        total += first_of(array[index:])
    return total


def test_other_threads_run_during_a_search():
    flag, turns, seen = np.zeros(1, np.int64), np.zeros(1, np.int64), []
    wait_for(np.ones(1, np.int64), turns)  # compiles
    thread = threading.Thread(target=lambda: seen.append(wait_for(flag, turns)))
    thread.start()
    while turns[0] == 0:  # the search runs; where it kept others out, it would end before this
        pass
    flag[0] = 1
    thread.join()
    assert seen == [True]


def test_compiled_code_counts_no_references():
    uncached = numba.jit(**sum_first.targetoptions)(sum_first.py_func)  # cached code has no IR
    assert uncached((np.arange(3), np.arange(4)), 1) == 2
    [code] = uncached.inspect_llvm().values()
    body = code[: code.index("define", code.index("define") + 1)]  # the function, not its wrapper
    assert "NRT_incref" not in body, (
        f"njit(_nrt=False) counts references: numba {numba.__version__}"
    )


def test_private_parts_of_numba_are_used_in_one_place():
    package = Path(graft.__file__).parent
    private = re.compile(r"numba\.core|numba\._|njit\(.*\b_\w+=")
    users = [
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if private.search(file.read_text(encoding="utf-8"))
    ]
    assert users == ["match/hash_table.py"]
