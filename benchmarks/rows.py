"""Result files of scripts that have no settings class: the options of their command line."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graft.bench.result_file import ResultFile, new_header, open_results


@contextmanager
def rows_file(kind: str, options: argparse.Namespace) -> Iterator[ResultFile]:
    """The file `options.out` with a new header, to append rows to; in memory without a path."""
    settings = json.loads(json.dumps(vars(options), default=str))
    with open_results(options.out and Path(options.out)) as file:
        file.begin(new_header(kind, {k: v for k, v in settings.items() if v is not None}))
        yield file
