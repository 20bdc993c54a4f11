"""The result file of `graft bench serve`."""

from pathlib import Path

from graft.bench.journal import Journal, read_journal
from graft.bench.serve.settings import KEY, SERVE


def read_serve(path: Path) -> Journal:
    """Everything in a file."""
    return read_journal(path, SERVE, KEY)
