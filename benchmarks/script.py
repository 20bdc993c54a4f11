"""How scripts end: a refusal is one line, an interruption is another."""

import signal
import sys
from collections.abc import Callable

from graft.errors import GraftError

FAILED, INTERRUPTED = 1, 130


def ended(main: Callable[[], int | None]) -> int:
    """Run a script; its exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # workers end, files stay whole
    try:
        return main() or 0
    except GraftError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run it again to resume\n")
        return INTERRUPTED
