"""One step at a time, by whichever thread needs a token; it serves all requests."""

import threading
from collections.abc import Callable
from typing import TypeVar

from graft.errors import InputError

Outcome = TypeVar("Outcome")


class StepLock:
    """Has no thread of its own: the first thread makes the step, others wait until it is over."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._holder: int | None = None  # the thread that makes the step

    def until(self, ready: Callable[[], bool], step: Callable[[], None]) -> None:
        """Make steps, or wait for those of other threads, until `ready`."""
        while not ready():
            self.once(ready, step)

    def once(self, ready: Callable[[], bool], step: Callable[[], object]) -> None:
        """At most one step, by this thread or another; none if `ready`."""
        if not self.try_exclusive(lambda: ready() or step()):
            self._wait()

    def exclusive(self, action: Callable[[], Outcome]) -> Outcome:
        """Run `action` as soon as no step is running; returns what it returns."""
        outcome: list[Outcome] = []
        while not self.try_exclusive(lambda: outcome.append(action())):
            self._wait()
        return outcome[0]

    def try_exclusive(self, action: Callable[[], object]) -> bool:
        """Run `action` now if no step is running; returns whether it ran."""
        mine = False
        try:
            with self._condition:
                if self._holder is not None:
                    return False
                mine, self._holder = True, threading.get_ident()
            action()
            return True
        finally:
            if mine:
                with self._condition:
                    self._holder = None
                    self._condition.notify_all()

    def _wait(self) -> None:
        """Wait for the end of the step that is running, if any."""
        with self._condition:
            if self._holder == threading.get_ident():
                raise InputError("a callback cannot use the engine that calls it")
            if self._holder is not None:
                self._condition.wait()
