"""Graft inside other libraries; each module is imported on first use."""

from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(f"graft.integrations.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"graft.integrations.{name}":
            raise
        raise AttributeError(f"module 'graft.integrations' has no attribute {name!r}") from error
