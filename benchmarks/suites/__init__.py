"""One file per suite: its docstring says what it measures, `read(data)` returns its prompts.

A file put here is a suite by its name; nothing else needs to be told of it.
"""

import pkgutil
from importlib import import_module


def suite_names() -> list[str]:
    """Every file of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def longest_answer(name: str) -> int | None:
    """Tokens that a suite's answers need (its `MAX_TOKENS`), where it says so."""
    if name not in suite_names():
        return None
    return getattr(import_module(f"{__name__}.{name}"), "MAX_TOKENS", None)
