"""Short prompts without retrieval and threads: both ends of a long prompt."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

HEAD, TAIL = 20, 60  # tokens of each end


def ends_only(tokens: Sequence[int], *_: Any) -> list[int] | None:
    """The beginning and the end; None for prompts that are hardly longer."""
    if len(tokens) < 2 * (HEAD + TAIL):
        return None
    return [*tokens[:HEAD], *tokens[-TAIL:]]


class Inline:
    """An executor that runs what is submitted at once, without threads."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, work: Callable[..., Any], *given: Any) -> Future:
        done: Future = Future()
        try:
            done.set_result(work(*given))
        except Exception as error:
            done.set_exception(error)
        return done
