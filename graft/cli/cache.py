"""`graft cache`: the KV cache of documents on disk."""

from typing import Annotated

import typer

from graft.cli.options import JSON
from graft.cli.show import print_result

MEGABYTE = 1e6


def cache(
    *,
    clear: Annotated[bool, typer.Option("--clear", help="Delete it.")] = False,
    json: JSON = False,
) -> None:
    """Show or delete the KV cache of documents that is kept on disk."""
    from graft.models.prefix_files import forget, kept, prefix_folder

    folder = prefix_folder()
    texts, size = kept(folder)
    if clear:
        forget(folder)
    state = {"folder": str(folder), "texts": texts, "bytes": size, "cleared": clear}
    number = f"{texts} prompt{'s' if texts != 1 else ''}"
    done = "deleted from" if clear else "in"
    line = f"KV cache of {number}, {size / MEGABYTE:,.0f} MB, {done} {folder}"
    print_result(state, line, json=json)
