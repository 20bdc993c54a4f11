"""Folders import only folders to their left; the order is the one of docs/design.md."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "graft"
ANYONE = {"compiled", "errors", "home", "machine", "sampling_params"}
GROUPS = [
    {"sampling", "kernels", "tree", "match", "documents", "retrieval"},
    {"models", "verify"},
    {"draft"},
    {"decode"},
    {"assemble"},
    {"rag"},
    {"bench", "server", "integrations", "train"},
    {"cli"},
]
# The public names and `python -m graft` stand above every folder.
ABOVE_ALL = {"__init__", "__main__"}


def allowed(folder: str) -> set[str]:
    """What a folder may import besides itself; two folders of a group know nothing of each other.

    A command may also use the public names (`import graft`), as any user does.
    """
    if folder in ABOVE_ALL:
        return ANYONE.union(*GROUPS)
    if folder in ANYONE:
        return ANYONE
    [place] = [place for place, group in enumerate(GROUPS) if folder in group]
    public = {"__init__"} if folder in {"cli", "bench", "server", "integrations"} else set()
    return ANYONE.union(public, *GROUPS[:place])


def imported_folders(source: str) -> set[str]:
    """First-level names of graft imported anywhere in the source, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            inside = [f"graft.{name.name}" for name in node.names if node.module == "graft"]
            found |= set(inside or [str(node.module)])
    parts = [name.split(".") for name in found]
    return {_first_level(each) for each in parts if each[0] == "graft"}


def _first_level(parts: list[str]) -> str:
    """`import graft` and `from graft import load` are imports of graft/__init__.py."""
    known = ANYONE.union(*GROUPS)
    return parts[1] if len(parts) > 1 and parts[1] in known else "__init__"


def test_files_import_only_what_their_folder_may():
    wrong = {}
    for file in ROOT.rglob("*.py"):
        folder = file.relative_to(ROOT).parts[0].removesuffix(".py")
        found = imported_folders(file.read_text(encoding="utf-8"))
        wrong[str(file)] = found - allowed(folder) - {folder}
    assert len(wrong) > 300
    assert not {file: folders for file, folders in wrong.items() if folders}


@pytest.mark.parametrize(
    ("source", "folders"),
    [
        ("import os\nfrom graft.tree.grow import grow", {"tree"}),
        ("def late():\n    from graft.decode import engine", {"decode"}),
        ("from graft import home, load", {"home", "__init__"}),
        ("import graft.match.ngram as ngram\nimport graft", {"match", "__init__"}),
        ("from graftlike import other", set()),
    ],
)
def test_imports_are_found_wherever_they_stand(source, folders):
    assert imported_folders(source) == folders
