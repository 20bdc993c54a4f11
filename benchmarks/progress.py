"""Progress as lines on stderr; tables go to stdout."""

import sys


class Lines:
    """Writes a line for everything that happens."""

    def begin(self, total: int, done: int) -> None:
        """The number of measurements."""
        self.say(f"{total - done} of {total} measurements")

    def show(self, text: str) -> None:
        """The current activity."""
        self.say(text)

    def advance(self) -> None:
        """Nothing: the next activity follows."""

    def say(self, line: str) -> None:
        """A message."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
