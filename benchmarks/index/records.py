"""The result file of `graft bench index`."""

from pathlib import Path

from graft.bench.index.run import INDEX, KEY
from graft.bench.journal import Journal, read_journal


def read_index(path: Path) -> Journal:
    """Everything in a file."""
    return read_journal(path, INDEX, KEY)
