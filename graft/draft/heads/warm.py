"""A GPU captures a graph for every shape of a head's rounds: at the start, not in the middle of an
answer.
"""

from bisect import bisect_left
from contextlib import ExitStack
from itertools import product

from graft.draft.heads.costs import read_text, text_of
from graft.draft.heads.growth import BATCHES, Asked
from graft.draft.heads.head import BEAMS, DraftHead
from graft.draft.heads.worth import SHAPES
from graft.sampling import Sampler, SamplingParams

TEXT = 16  # tokens


def warm_shapes(helper: DraftHead, sequences: int = 1) -> None:
    """Run a round of every shape that may be chosen, greedy and sampled, for every size of batch
    that rounds are captured for, up to the one for so many sequences."""
    runner = helper.runner
    sampler = Sampler(SamplingParams(temperature=1.0, seed=0), [], runner.model.vocabulary)
    sizes = BATCHES[: bisect_left(BATCHES, sequences) + 1]
    beams = BEAMS[runner.config.kind][0], *SHAPES
    with ExitStack() as texts:
        read = [
            texts.enter_context(read_text(runner, TEXT)) for _ in range(min(sequences, sizes[-1]))
        ]
        for size, beam, whose in product(sizes, beams, (None, sampler)):
            asked = []
            for memory, extent in read[:size]:
                memory.end = TEXT  # the same token every time
                asked.append(Asked(text_of(runner, memory, 1), extent, whose))
            helper.growth.begin(asked, beam)()
