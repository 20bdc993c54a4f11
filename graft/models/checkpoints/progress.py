"""Progress on standard error: a bar on a terminal, one line elsewhere, nothing without `show`."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(label: str, total: int, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the bytes done so far, of `total`."""
    if not show:
        yield lambda done: None
        return
    if not sys.stderr.isatty():
        print(f"{label} ...", file=sys.stderr, flush=True)  # noqa: T201
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)
