"""Steps that start before the tokens of the last are known."""

from graft.decode.in_flight import InFlightStep, Part
from graft.decode.scheduler import Scheduler
from graft.decode.stats import clock
from graft.draft.drafter import RunsAhead, by_drafter, runs_ahead
from graft.models.language_model import LanguageModel
from graft.tree.draft_tree import root_only
from graft.verify.draws import Draws, Positions

_UNKNOWN = root_only(0)  # until the tokens arrive
_NEXT = Positions(1)  # where such a step samples: one token behind those that are known


def run_ahead(
    current: InFlightStep, scheduler: Scheduler, model: LanguageModel
) -> InFlightStep | None:
    """Score the step after `current` with tokens that only the device knows, if it may."""
    drafters = _drafters_to_skip(current, scheduler, model)
    if not drafters or not current.draws:
        return None
    since = clock()
    for drafter in drafters:
        drafter.skip()
    sequences = [part.sequence for part in current.parts]
    extents = [sequence.held_extent for sequence in sequences]
    logits = model.score_ahead(extents, current.draws.on_device)
    draws = Draws([(sequence.sampler, _NEXT) for sequence in sequences], logits)
    parts = [Part(sequence, _UNKNOWN, place) for place, sequence in enumerate(sequences)]
    return InFlightStep(parts, list(logits.split(1)), draws, since)


def _drafters_to_skip(
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
        if not runs_ahead(drafter) or not drafter.can_skip(contexts):
            return []
        skipping.append(drafter)
    return skipping
