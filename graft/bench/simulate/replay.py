"""Replay recorded outputs through a drafter: the real loop around a recorded model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from graft.assemble.drafters import Drafters
from graft.bench.decoding import DecodeRow
from graft.bench.measure import batched
from graft.bench.simulate.recorded_model import RecordedForward, RecordedOutputs, SimulatedClock
from graft.bench.simulate.recordings import Recording
from graft.decode.engine import Engine
from graft.decode.request import Request
from graft.decode.stats import Stats
from graft.draft.drafter import Drafter
from graft.match.pool import Pools
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.language_model import CHUNKS, Forward, LanguageModel
from graft.models.load import LoadedModel
from graft.models.step_costs import StepCosts
from graft.sampling import SamplingParams

DRAFT = "replayed"
SLACK = 128  # of the context, for draft nodes beside the output
_NOWHERE = Checkpoint("recorded", Path("recorded"), "recorded")


@dataclass(frozen=True, slots=True)
class Machine:
    """Step costs, batch size, tokens of a prefill chunk, and a context that replaces the recorded
    ones."""

    costs: StepCosts
    batch: int = 1
    chunk: int = CHUNKS["cpu"]
    context: int | None = None

    @property
    def budgeted(self) -> StepCosts:
        """The costs that the draft budget uses."""
        if self.context is None:
            return self.costs
        nodes = self.costs.nodes
        seconds = tuple(self.costs.step(self.context, each) for each in nodes)
        return StepCosts((self.context,), nodes, (seconds,))


def replay(
    recordings: Sequence[Recording],
    drafter: Drafter,
    machine: Machine,
    clock: SimulatedClock,
    pools: Pools | None = None,
) -> list[DecodeRow]:
    """A row for every batch of recordings; `drafter` may use the same `clock`, and the `pools` that
    the outputs are added to."""
    outputs = RecordedOutputs([each.output for each in recordings], clock)
    engine = _engine(recordings, drafter, machine, outputs, clock)
    if pools:
        engine.keep_answers(pools)
    return [
        _replayed(engine, {place: recordings[place] for place in places}, outputs, clock)
        for places in batched(range(len(recordings)), machine.batch)
    ]


def _engine(
    recordings: Sequence[Recording],
    drafter: Drafter,
    machine: Machine,
    outputs: RecordedOutputs,
    clock: SimulatedClock,
) -> Engine:
    vocabulary = 1 + max(max(*each.prompt, *each.output) for each in recordings)
    longest = max(len(each.prompt) + each.max_tokens for each in recordings)
    forward = RecordedForward(vocabulary, machine.costs, clock, machine.context)
    model = LanguageModel(
        cast(Forward, forward),  # the part of it that lookup drafters need
        vocabulary=vocabulary,
        context_length=longest + SLACK,
        chunk=machine.chunk,
    )
    loaded = LoadedModel(model, None, _NOWHERE, frozenset(), "fp32", "cpu", "recorded")
    drafters = Drafters()
    drafters[DRAFT] = drafter
    return Engine(
        loaded,
        drafters,
        outputs.verify,
        machine.budgeted,
        default_draft=DRAFT,
        max_batch=machine.batch,
    )


def _replayed(
    engine: Engine, group: dict[int, Recording], outputs: RecordedOutputs, clock: SimulatedClock
) -> DecodeRow:
    start = clock.now
    outputs.begin(group)
    requests = [
        Request(
            each.prompt,
            SamplingParams(max_tokens=each.max_tokens, stop_token_ids=each.end_tokens, seed=place),
            process=outputs.first(place),
        )
        for place, each in group.items()
    ]
    results = engine.generate(requests)
    for result, each in zip(results, group.values(), strict=True):
        assert result.token_ids == each.output, "a replay must generate what was recorded"
    counts = Stats.together(result.stats for result in results)
    categories = {each.category for each in group.values()}
    return DecodeRow(
        prompts=[each.number for each in group.values()],
        variant=DRAFT,
        category=categories.pop() if len(categories) == 1 else "mixed",
        batch=len(group),
        tokens=sum(len(each.output) for each in group.values()),
        first_tokens=outputs.first_tokens,
        steps=counts.steps,
        drafted=counts.num_draft_tokens,
        drafted_by_source=dict(counts.drafted_by_source),
        accepted_by_source=dict(counts.accepted_by_source),
        prefill_seconds=outputs.begun_at - start,
        decode_seconds=clock.now - outputs.begun_at,
        total_seconds=clock.now - start,
    )
