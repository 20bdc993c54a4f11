"""Replay recorded answers through a drafter: the real loop around a model that knows them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graft.bench.decoding import DecodeRow
from graft.bench.simulate.recorded_model import RecordedForward, Retelling, SimulatedClock
from graft.bench.simulate.recordings import Recording, groups
from graft.decode.engine import Engine
from graft.decode.request import Request
from graft.decode.sequence import Result
from graft.decode.stats import Stats
from graft.draft.drafter import Drafter
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.language_model import CHUNKS, LanguageModel
from graft.models.load import LoadedModel
from graft.models.step_costs import StepCosts
from graft.sampling import SamplingParams

DRAFT = "replayed"
SLACK = 128  # of the context: nodes of a tree beside the answer's own tokens
_NOWHERE = Checkpoint("recorded", Path("recorded"), "recorded")


@dataclass(frozen=True, slots=True)
class Machine:
    """What is simulated: the time of steps, how many prompts run at once, how many of their tokens
    are read at once, and how many tokens every step stands on, if not on those recorded."""

    costs: StepCosts
    batch: int = 1
    chunk: int = CHUNKS["cpu"]
    context: int | None = None

    @property
    def budgeted(self) -> StepCosts:
        """The costs that drafts are weighed by."""
        if self.context is None:
            return self.costs
        nodes = self.costs.nodes
        seconds = tuple(self.costs.step(self.context, each) for each in nodes)
        return StepCosts((self.context,), nodes, (seconds,))


@dataclass(slots=True)
class Replayed:
    """A run for every group of recordings, and what the simulation took itself."""

    runs: list[DecodeRow] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def steps_per_second(self) -> float:
        """Of the simulation."""
        return sum(run.steps for run in self.runs) / self.seconds if self.seconds else 0.0


def replay(
    recordings: Sequence[Recording], drafter: Drafter, machine: Machine, clock: SimulatedClock
) -> Replayed:
    """Answer all of them again, a batch at a time; `drafter` may look at the same `clock`."""
    replayed = Replayed()
    if not recordings:
        return replayed
    retelling = Retelling([each.output for each in recordings], clock)
    engine = _engine(recordings, drafter, machine, retelling, clock)
    start = time.perf_counter()
    for places in groups(len(recordings), machine.batch):
        group = {place: recordings[place] for place in places}
        replayed.runs.append(_replayed(engine, group, retelling, clock))
    replayed.seconds = time.perf_counter() - start
    return replayed


def _engine(
    recordings: Sequence[Recording],
    drafter: Drafter,
    machine: Machine,
    retelling: Retelling,
    clock: SimulatedClock,
) -> Engine:
    vocabulary = 1 + max(max(*each.prompt, *each.output) for each in recordings)
    longest = max(len(each.prompt) + each.max_tokens for each in recordings)
    model = LanguageModel(
        RecordedForward(vocabulary, machine.costs, clock, machine.context),
        vocabulary=vocabulary,
        context_length=longest + SLACK,
        chunk=machine.chunk,
    )
    loaded = LoadedModel(model, None, _NOWHERE, frozenset(), "fp32", "cpu", "recorded")
    return Engine(
        loaded,
        {DRAFT: drafter},
        retelling.verify,
        machine.budgeted,
        default_draft=DRAFT,
        max_batch=machine.batch,
    )


def _replayed(
    engine: Engine, group: dict[int, Recording], retelling: Retelling, clock: SimulatedClock
) -> DecodeRow:
    start = clock.now
    retelling.begin(group)
    requests = [
        Request(
            each.prompt,
            SamplingParams(max_tokens=each.max_tokens, stop_token_ids=each.end_tokens, seed=place),
            process=retelling.first(place),
        )
        for place, each in group.items()
    ]
    results = engine.generate(requests)
    for result, each in zip(results, group.values(), strict=True):
        assert result.token_ids == each.output, "a replay must say what was recorded"
    return _run(results, list(group.values()), retelling, start, clock.now)


def _run(
    results: list[Result], group: list[Recording], retelling: Retelling, start: float, end: float
) -> DecodeRow:
    counts = Stats.together(result.stats for result in results)
    categories = {each.category for each in group}
    return DecodeRow(
        prompts=[each.number for each in group],
        variant=DRAFT,
        category=categories.pop() if len(categories) == 1 else "mixed",
        batch=len(group),
        tokens=sum(len(each.output) for each in group),
        first_tokens=retelling.first_tokens,
        steps=counts.steps,
        drafted=counts.num_draft_tokens,
        drafted_by_source=dict(counts.drafted_by_source),
        accepted_by_source=dict(counts.accepted_by_source),
        prefill_seconds=retelling.begun_at - start,
        decode_seconds=end - retelling.begun_at,
        total_seconds=end - start,
    )
