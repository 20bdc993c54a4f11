"""A GPU captures a graph for every shape of a head's rounds: at the start, not in the middle of an
answer.
"""

from contextlib import ExitStack

from graft.draft.heads.costs import read_text, text_of
from graft.draft.heads.growth import Asked
from graft.draft.heads.head import BEAMS, HeadHelper
from graft.draft.heads.worth import SHAPES
from graft.sampling import Sampler, SamplingParams

TEXT = 16  # tokens
MOST = 16  # sequences: the rounds of more are not captured


def warm_shapes(helper: HeadHelper, sequences: int = 1) -> None:
    """Run a round of every shape that may be chosen, greedy and sampled, for one sequence, for two,
    four and so on, and for as many as there may be."""
    runner = helper.runner
    sampler = Sampler(SamplingParams(temperature=1.0, seed=0), [], runner.model.vocabulary)
    sequences = min(sequences, MOST)
    with ExitStack() as texts:
        read = [texts.enter_context(read_text(runner, TEXT)) for _ in range(sequences)]
        for power in range((sequences - 1).bit_length() + 1):
            for beam in (BEAMS[runner.config.kind][0], *SHAPES):
                for whose in (None, sampler):
                    asked = []
                    for memory, extent in read[: 2**power]:
                        memory.end = TEXT  # the same token every time
                        asked.append(Asked(text_of(runner, memory, 1), extent, whose))
                    helper.growth.begin(asked, beam)()
