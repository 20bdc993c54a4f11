"""The scripts of benchmarks/ as modules."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    def load(name):
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look there
        spec.loader.exec_module(module)
        return module

    return load
