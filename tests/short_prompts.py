"""Short prompts without retrieval: the two ends of a long one."""

from collections.abc import Sequence
from dataclasses import dataclass

HEAD, TAIL = 20, 60  # tokens of each end


@dataclass(frozen=True, slots=True)
class Ends:
    """What is left of a prompt."""

    tokens: list[int]


def ends_only(tokens: Sequence[int], quotable: Sequence[tuple[int, int]]) -> Ends | None:  # noqa: ARG001
    """The beginning and the end; None for prompts that are hardly longer."""
    if len(tokens) < 2 * (HEAD + TAIL):
        return None
    return Ends([*tokens[:HEAD], *tokens[-TAIL:]])
