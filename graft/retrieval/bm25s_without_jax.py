"""Import bm25s without JAX.

bm25s runs JAX at import if it is installed, and JAX then allocates three quarters of the GPU's
memory until the process ends. Graft ranks with numpy.
"""

import sys
from functools import cache
from types import ModuleType

JAX = "jax"


@cache  # hides JAX once only
def load_bm25s() -> ModuleType:
    """The package bm25s; JAX can still be imported later."""
    if JAX in sys.modules:
        import bm25s

        return bm25s
    sys.modules[JAX] = None  # type: ignore[assignment]  # makes `import jax` fail
    try:
        import bm25s
    finally:
        del sys.modules[JAX]
    return bm25s
