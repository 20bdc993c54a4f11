"""A GPU captures a graph for every shape of a head's rounds: at the start, not in the middle of an
answer.
"""

from graft.draft.heads.costs import read_text, text_of
from graft.draft.heads.growth import Asked
from graft.draft.heads.head import BEAMS, HeadHelper
from graft.draft.heads.worth import SHAPES
from graft.sampling import Sampler, SamplingParams

TEXT = 16  # tokens


def warm_shapes(helper: HeadHelper) -> None:
    """Run a round of every shape that may be chosen for one sequence, greedy and sampled."""
    runner = helper.runner
    sampler = Sampler(SamplingParams(temperature=1.0, seed=0), [], runner.model.vocabulary)
    with read_text(runner, TEXT) as (memory, extent):
        for beam in (BEAMS[runner.config.kind][0], *SHAPES):
            for whose in (None, sampler):
                memory.end = TEXT  # the same token every time
                helper.growth.begin([Asked(text_of(runner, memory, 1), extent, whose)], beam)()
