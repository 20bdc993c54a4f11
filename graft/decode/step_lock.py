"""Many threads, one step at a time: whoever needs a token makes the next step, for everybody."""

import threading
from collections.abc import Callable

from graft.errors import InputError


class StepLock:
    """No thread of its own: who comes first steps, the others wait until that step is over."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._stepping: int | None = None  # the thread that is at it

    def until(self, ready: Callable[[], bool], step: Callable[[], None]) -> None:
        """Step, or let others step, until `ready`."""
        while not ready():
            self.once(ready, step)

    def once(self, ready: Callable[[], bool], step: Callable[[], None]) -> None:
        """At most one step, by this thread or by another; none if `ready`."""
        if not self.between(lambda: ready() or step()):
            self._await_end()

    def exclusive(self, action: Callable[[], None]) -> None:
        """Do something as soon as no step is under way."""
        while not self.between(action):
            self._await_end()

    def between(self, action: Callable[[], object]) -> bool:
        """Do something now if no step is under way; whether it was done."""
        mine = False
        try:
            with self._condition:
                if self._stepping is not None:
                    return False
                mine, self._stepping = True, threading.get_ident()
            action()
            return True
        finally:
            if mine:
                with self._condition:
                    self._stepping = None
                    self._condition.notify_all()

    def _await_end(self) -> None:
        """Until the step under way is over, if there still is one."""
        with self._condition:
            if self._stepping == threading.get_ident():
                raise InputError("an engine cannot be asked from inside its own callbacks")
            if self._stepping is not None:
                self._condition.wait()
