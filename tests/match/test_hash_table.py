"""What all compiled searches share."""

import threading

import numpy as np

from graft.match.hash_table import compiled

PATIENCE = 1 << 31  # turns of a loop: seconds


@compiled
def wait_for(flag, turns):
    """Spin until somebody else sets the flag; whether they did."""
    while flag[0] < 1 and turns[0] < PATIENCE:
        turns[0] += 1
    return flag[0] == 1


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
