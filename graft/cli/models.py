"""`graft models`: list, fetch and remove models."""

import json as json_module
import sys
from typing import Annotated, Any

import typer

from graft.cli.options import JSON

MEGABYTE = 1e6


def models(
    *,
    fetch: Annotated[
        str | None, typer.Option(metavar="NAME", help="Download and convert a model now.")
    ] = None,
    remove: Annotated[
        str | None, typer.Option(metavar="NAME", help="Delete a model from the cache.")
    ] = None,
    json: JSON = False,
) -> None:
    """List known and cached models, fetch one, or remove one.

    Example: graft models --fetch smollm2-135m
    """
    if fetch is not None and remove is not None:
        raise typer.BadParameter("--fetch and --remove cannot be used together")
    from graft.models.checkpoints import pretrained

    done: dict[str, Any]
    if fetch is not None:
        folder = str(pretrained.locate(fetch).folder)
        done, line = {"name": fetch, "folder": folder}, f"{fetch} is in {folder}"
    elif remove is not None:
        freed = pretrained.remove(remove)
        done, line = {"name": remove, "bytes": freed}, f"removed {remove}, {freed} bytes freed"
    else:
        done, line = listing(), ""
    if json:
        print(json_module.dumps(done, indent=2))
    elif line:
        print(line, file=sys.stderr)
    else:
        show(done)


def listing() -> dict[str, Any]:
    """The cache's folder, known and cached models (`folder` is None if not cached), draft heads."""
    from graft.home import home
    from graft.models.checkpoints.pretrained import DEFAULT_MODEL, KNOWN, installed
    from graft.models.heads.installed import installed_heads

    rows = []
    for model in installed():
        known = KNOWN.get(model.name)
        rows.append(
            {
                "name": model.name,
                "description": model.description,
                "folder": str(model.folder) if model.folder else None,
                "bytes": model.size,
                "download_bytes": known.download if known else 0,
                "default": model.name == DEFAULT_MODEL,
            }
        )
    heads = [
        {
            "name": each.name,
            "target": each.target,
            "folder": str(each.folder),
            "bytes": each.size,
            "cross_layers": each.cross_layers,
        }
        for each in installed_heads()
    ]
    return {"home": str(home()), "models": rows, "heads": heads}


def show(listed: dict[str, Any]) -> None:
    """Print a table of models and heads, and the cache's folder."""
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "cached", "description", box=None, pad_edge=False)
    for row in listed["models"]:
        size = f"{row['bytes'] / MEGABYTE:,.0f} MB"
        if row["folder"] is None:
            size = f"no ({row['download_bytes'] / MEGABYTE:,.0f} MB to fetch)"
        name = row["name"] + (" (default)" if row["default"] else "")
        table.add_row(name, size, row["description"])
    for row in listed["heads"]:
        layers = row["cross_layers"]
        attends = "" if layers == 1 else f", attends to its last {layers} layers"
        description = f"draft head for {row['target']}{attends}"
        table.add_row(row["name"], f"{row['bytes'] / MEGABYTE:,.0f} MB", description)
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print(f"cache: {listed['home']} (GRAFT_HOME sets another)", soft_wrap=True)
    console.print(
        "also: any hub id (org/model), a safetensors folder or a .gguf file", soft_wrap=True
    )
