"""Captures the CUDA graphs of a head's drafts at start-up, not during a request."""

from bisect import bisect_left
from contextlib import ExitStack
from itertools import product

from graft.draft.heads.costs import read_text, text_of
from graft.draft.heads.growth import BATCHES, DraftInput
from graft.draft.heads.head import BEAMS, DraftHead
from graft.draft.heads.shapes import SHAPES
from graft.sampling import Sampler, SamplingParams

TEXT = 16  # tokens


def warm_shapes(head: DraftHead, sequences: int = 1) -> None:
    """Run a draft of every shape, greedy and sampled, for every captured batch size up to the one
    for so many sequences."""
    runner = head.runner
    sampler = Sampler(SamplingParams(temperature=1.0, seed=0), [], runner.model.vocabulary)
    sizes = BATCHES[: bisect_left(BATCHES, sequences) + 1]
    beams = BEAMS[runner.config.kind][0], *SHAPES
    with ExitStack() as stack:
        texts = [
            stack.enter_context(read_text(runner, TEXT)) for _ in range(min(sequences, sizes[-1]))
        ]
        for size, beam, each in product(sizes, beams, (None, sampler)):
            inputs = []
            for memory, extent in texts[:size]:
                memory.end = TEXT  # the same token every time
                inputs.append(DraftInput(text_of(runner, memory, 1), extent, each))
            head.growth.begin(inputs, beam)()
