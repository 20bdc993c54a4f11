"""What a step may cost those who wait for it, by the table of measured costs."""

import numpy as np

from graft.decode.sequence import Sequence
from graft.models.step_costs import StepCosts

READING_SLOWS = 3  # a streamed token may take so many times as long where prompts are read too
LEAST_PIECE = 8  # prompt tokens that are read in a step all the same
LEAST_SHARE = 0.02  # of such a step's time that counts as the writers'
ABOUT = 64  # tokens of context that change nothing worth asking for again


def readable_tokens(costs: StepCosts, writing: list[Sequence], most: int) -> int:
    """How many prompt tokens, `most` at most, the next step may read without keeping those who
    stream. They count tokens, not steps: the more of them a step brings, the sooner it must end."""
    streaming = [sequence.stats for sequence in writing if sequence.patience is not None]
    if not streaming:
        return most
    seconds = costs.beyond(_mean_length(writing), len(writing), most, len(writing))
    usual = sum(max(stats.tokens_per_step, 1.0) for stats in streaming) / len(streaming)
    longest = max(READING_SLOWS / usual, 1.0) * seconds[0]
    return max(LEAST_PIECE, int((seconds <= longest).sum()) - 1)


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
    mean = sum(sequence.extent.total for sequence in writing) // max(len(writing), 1)
    return mean // ABOUT * ABOUT
