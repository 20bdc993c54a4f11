"""bm25s as it is used here: without JAX.

Where JAX is installed bm25s runs it once as soon as it is imported, and JAX then takes three
quarters of a GPU's memory for as long as the process lives. Graft ranks with numpy.
"""

import sys
from functools import cache
from types import ModuleType

JAX = "jax"


@cache  # so that JAX is hidden once, for a moment
def load_bm25s() -> ModuleType:
    """The package; whoever imports JAX later still finds it."""
    if JAX in sys.modules:
        import bm25s

        return bm25s
    sys.modules[JAX] = None
    try:
        import bm25s
    finally:
        del sys.modules[JAX]
    return bm25s
