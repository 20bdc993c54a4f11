"""What a step may cost those who wait for it, by the table of measured costs."""

import numpy as np

from graft.decode.sequence import Sequence
from graft.models.step_costs import StepCosts

READING_SLOWS = 3  # a streamed step that also reads prompts may take so many times as long
LEAST_PIECE = 16  # prompt tokens that are read in it all the same
LEAST_SHARE = 0.02  # of such a step's time that counts as the writers'


def readable_tokens(costs: StepCosts, writing: list[Sequence], most: int) -> int:
    """How many prompt tokens, `most` at most, the next step may read without keeping those who
    stream."""
    if all(sequence.patience is None for sequence in writing):
        return most
    seconds = costs.beyond(_mean_length(writing), len(writing), most, len(writing))
    return max(LEAST_PIECE, int((seconds <= READING_SLOWS * seconds[0]).sum()) - 1)


def seconds_by_nodes(
    costs: StepCosts, writing: list[Sequence], *, rows: int, read: int, nodes: int
) -> np.ndarray:
    """[nodes + 1] what a step of `rows` rows and 0, 1, ... `nodes` more costs those who write.

    `read` of the rows are prompt tokens. They are read in any case: their time is not to be
    shared out among guesses.
    """
    length = _mean_length(writing)
    seconds = costs.beyond(length, rows, nodes, max(len(writing), 1))
    if not read:
        return seconds
    alone = costs.step(length, read)
    return np.maximum(seconds - alone, LEAST_SHARE * seconds)


def _mean_length(writing: list[Sequence]) -> int:
    return sum(sequence.extent.total for sequence in writing) // max(len(writing), 1)
