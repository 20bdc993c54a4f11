"""How a run is stopped from outside: after the step it is in, with everything saved."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stops_gently() -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C or SIGTERM came; the second one stops at once, as ever."""
    asked: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, _: object) -> None:
        asked.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
