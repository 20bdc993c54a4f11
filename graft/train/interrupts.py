"""Signals stop a run after the current step, with everything saved."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_after_step() -> Iterator[Callable[[], bool]]:
    """Yields a function: whether Ctrl-C or SIGTERM was received; the second one stops at once."""
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, _: object) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
