"""Steps that start before the tokens of the last are known: which may, and their parts."""

from graft.decode.in_flight import InFlightStep, Part
from graft.decode.scheduler import Scheduler
from graft.decode.sequence import Sequence
from graft.draft.drafter import RunsAhead, by_drafter
from graft.models.language_model import LanguageModel
from graft.tree.draft_tree import root_only
from graft.verify.draws import Positions

_UNKNOWN = root_only(0)  # until the tokens arrive
NEXT = Positions(1)  # where such a step samples: one token behind those that are known


def drafters_to_skip(
    current: InFlightStep, scheduler: Scheduler, model: LanguageModel
) -> list[RunsAhead]:
    """The drafters of the step after `current` if it may start now; none if it needs the host: to
    draft, to prefill, or to decide what is sampled."""
    sequences = [part.sequence for part in current.parts]
    if not (
        current.plain
        and current.draws
        and scheduler.is_settled(sequences)
        and all(s.runs_ahead and model.has_room(s.held_extent, 2) for s in sequences)
    ):
        return []
    skipping: list[RunsAhead] = []
    for drafter, mine in by_drafter(sequences, lambda each: each.drafter):
        contexts = [sequences[i].context for i in mine]
        if not isinstance(drafter, RunsAhead) or not drafter.can_skip(contexts):
            return []
        skipping.append(drafter)
    return skipping


def parts_ahead(sequences: list[Sequence]) -> list[Part]:
    """The parts of a step whose roots are not known yet."""
    return [Part(sequence, _UNKNOWN, place) for place, sequence in enumerate(sequences)]
