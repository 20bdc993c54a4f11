"""Tensor functions, independent of models and draft trees."""

import os

# GNU OpenMP, numba's thread pool on Linux, lets threads spin for milliseconds at every barrier. If
# anything else wants the cores, the spinning thread keeps from its work the very one it waits for:
# a step took seven times as long beside one busy process, 5 % longer with short spins alone.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
