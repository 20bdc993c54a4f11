"""One file per suite: its docstring says what it measures, `read(data)` returns its prompts.

A file put here is a suite by its name; nothing else needs to be told of it.
"""

import pkgutil


def suite_names() -> list[str]:
    """Every file of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
