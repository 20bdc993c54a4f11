"""Progress as lines, where there is no bar: `python -m graft.bench` and its kernels."""

import sys


class Lines:
    """A watch that writes a line for everything that happens."""

    def begin(self, total: int, done: int) -> None:
        """Say how much there is to do."""
        self.say(f"{total - done} measurements")

    def turn(self, text: str) -> None:
        """What happens now."""
        self.say(text)

    def advance(self) -> None:
        """The next turn says enough."""

    def say(self, line: str) -> None:
        """To stderr: tables go to stdout."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
