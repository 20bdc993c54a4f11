"""One file per suite: `read(data)` returns its prompts, `MAX_TOKENS` is the length of its outputs.

Every file of this folder that has a `read` is a suite by its name.
"""

import pkgutil
from importlib import import_module

SHARED = ("source", "task")


def suite_names() -> list[str]:
    """The names of all suites."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if name not in SHARED)


def max_answer_tokens(name: str) -> int | None:
    """Tokens that the answers of a suite need, where it says so."""
    if name not in suite_names():
        return None
    return getattr(import_module(f"{__name__}.{name}"), "MAX_TOKENS", None)
