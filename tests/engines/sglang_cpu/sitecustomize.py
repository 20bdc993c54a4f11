"""Python runs this at the start of every process of SGLang's, because the folder is on PYTHONPATH.

SGLang's image models import torchvision, whose wheels need CUDA; text needs none of it. Modules of
SGLang's are changed when they are imported (`changes.py`).
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence

import changes

if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    from transformers.utils import import_utils

    import_utils.is_torchvision_available()  # remembers that there is none

    class Anything(types.ModuleType):
        """Every name is a class."""

        __path__ = ()

        def __getattr__(self, name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    class Torchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        """Finds it where it is not installed."""

        def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
            if name.partition(".")[0] != "torchvision":
                return None
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

        def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
            return Anything(spec.name)

        def exec_module(self, module: types.ModuleType) -> None:
            pass

    class Changed(importlib.abc.MetaPathFinder):
        """Finds a module as others do, and changes it after it has run."""

        def find_spec(
            self,
            name: str,
            path: Sequence[str] | None = None,  # noqa: ARG002
            target: types.ModuleType | None = None,  # noqa: ARG002
        ) -> importlib.machinery.ModuleSpec | None:
            change = changes.OF_MODULES.get(name)
            if change is None:
                return None
            sys.meta_path.remove(self)
            try:
                spec = importlib.util.find_spec(name)
            finally:
                sys.meta_path.insert(0, self)
            run = spec.loader.exec_module

            def run_and_change(module: types.ModuleType) -> None:
                run(module)
                change(module)

            spec.loader.exec_module = run_and_change
            return spec

    sys.meta_path.append(Torchvision())
    sys.meta_path.insert(0, Changed())
