"""The public names: they are documented, and a missing package is named in one line."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import graft

ROOT = Path(__file__).parents[1]
BLOCKED = "import sys; sys.modules[{0!r}] = None; import graft\n"


def make_api():
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_api_page_is_current():
    script = make_api()
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run: make api"


def test_every_public_name_is_on_the_page_and_documented():
    script = make_api()
    shown = [name for names in script.SECTIONS.values() for name in names]
    assert sorted(shown) == graft.__all__
    undocumented = [each for each in shown if not getattr(graft, each).__doc__]
    assert set(undocumented) <= set(script.ALIASES)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'graft' has no attribute 'nothing'"):
        _ = graft.nothing
    assert not hasattr(graft, "__wrapped__")


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [
        ("torch", "load", "torch"),
        ("torch", "Engine", "torch"),
        ("jinja2", "Prompt", "jinja2"),
    ],
)
def test_missing_package_is_named_with_its_pip_command(module, name, package):
    script = BLOCKED.format(module) + (
        f"try: graft.{name}\nexcept graft.MissingDependencyError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout == f"{module} is not installed; type: pip install {package}\n", run.stderr


def test_missing_package_of_an_extra_names_the_extra():
    error = graft.errors.missing_dependency(ModuleNotFoundError(name="fastapi.responses"))
    assert str(error) == "fastapi is not installed; type: pip install 'graftlm[server]'"
    assert isinstance(error, graft.GraftError)
    assert isinstance(error, ImportError)
