"""A replay counts what the real run counts, without its model."""

import pytest
from tiny import END, costs_of, tiny_engine

from graft import Request, SamplingParams
from graft.assemble.drafters import Drafters
from graft.assemble.resources import DraftResources
from graft.bench.decoding import tokens_per_step
from graft.bench.simulate.recorded_model import SimulatedClock, step_seconds
from graft.bench.simulate.recordings import Recording
from graft.bench.simulate.replay import Machine, replay
from graft.models.step_costs import StepCosts

ROOM = 60
PROMPTS = [
    "the man in the rain and the woman on the train",
    "an end to the war: the men returned there, then the end",
    "on and on and on",
    "here and there",
]


@pytest.fixture(scope="module")
def engine(one_thread):
    return tiny_engine()


def answers(engine, draft, temperature, batch=1):
    """What the real engine says, group by group."""
    params = [
        SamplingParams(max_tokens=ROOM, temperature=temperature, seed=number)
        for number in range(len(PROMPTS))
    ]
    # without the chat's template, as the bench has it
    requests = [
        Request(engine.encoder.prompt(text).tokens, each, draft=draft)
        for text, each in zip(PROMPTS, params, strict=True)
    ]
    found = []
    for start in range(0, len(requests), batch):
        found += engine.generate(requests[start : start + batch])
    return found


@pytest.fixture(scope="module")
def recordings(engine):
    """By temperature: what plain decoding wrote."""
    return {temperature: recorded(engine, temperature) for temperature in (0.0, 1.0)}


def recorded(engine, temperature):
    prompts = [engine.encoder.prompt(text).tokens for text in PROMPTS]
    return [
        Recording(
            number,
            "test",
            prompt,
            result.token_ids,
            ROOM,
            ended=result.finish_reason == "stop",
        )  # fmt: skip
        for number, (prompt, result) in enumerate(
            zip(prompts, answers(engine, "plain", temperature), strict=True)
        )
    ]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("draft", ["plain", "pld", "copy", "igpg", "auto", "pld+copy"])
def test_counts_are_those_of_the_real_run(engine, recordings, draft, temperature, batch):
    real = answers(engine, draft, temperature, batch)
    clock = SimulatedClock()
    runs = replay(
        recordings[temperature],
        Drafters(DraftResources())[draft],
        Machine(costs_of(1.0), batch),
        clock,
    )
    assert sum(run.steps for run in runs) == sum(each.stats.steps for each in real)
    assert sum(run.drafted for run in runs) == sum(each.stats.num_draft_tokens for each in real)
    accepted = sum(sum(run.accepted_by_source.values()) for run in runs)
    assert accepted == sum(each.stats.num_accepted_draft_tokens for each in real)


def test_some_drafts_are_accepted_and_some_are_not(recordings):
    runs = replay(recordings[0.0], Drafters()["copy"], Machine(costs_of(1.0)), SimulatedClock())
    assert tokens_per_step(runs) > 1.2
    assert (
        0
        < sum(sum(run.accepted_by_source.values()) for run in runs)
        < sum(run.drafted for run in runs)
    )


def test_an_answer_that_ended_early_is_replayed_to_its_end():
    recording = Recording(1, "test", [5, 6, 7, 8, 5, 6], [7, 8, END], max_tokens=50, ended=True)
    [run] = replay([recording], Drafters()["copy"], Machine(costs_of(1.0)), SimulatedClock())
    assert (run.tokens, run.steps) == (3, 1)


def test_time_is_the_tables():
    table = StepCosts((10, 20), (1, 2, 4), ((1.0, 1.5, 2.0), (3.0, 4.0, 5.0)))
    recording = Recording(1, "test", [5] * 10, [6, 7, 8], max_tokens=3)
    [run] = replay([recording], Drafters()["plain"], Machine(table), SimulatedClock())
    assert run.decode_seconds == pytest.approx(table.step(10, 1) + table.step(11, 1))
    assert run.first_tokens == 1
    assert run.total_seconds == pytest.approx(run.prefill_seconds + run.decode_seconds)


def test_a_given_context_replaces_the_recorded_one():
    table = StepCosts((10, 20), (1, 2, 4), ((1.0, 1.5, 2.0), (3.0, 4.0, 5.0)))
    recording = Recording(1, "test", [5] * 10, [6, 7, 8], max_tokens=3)
    machine = Machine(table, context=30)
    [run] = replay([recording], Drafters()["plain"], machine, SimulatedClock())
    assert run.decode_seconds == pytest.approx(2 * table.step(30, 1))
    assert machine.budgeted.step(1, 2) == table.step(30, 2)


def test_every_sequence_of_a_batch_pays_for_its_own_context():
    table = StepCosts((10, 20), (1, 2, 4), ((1.0, 1.5, 2.0), (3.0, 4.0, 5.0)))
    assert step_seconds(table, [20], [2]) == 4.0
    assert step_seconds(table, [20, 20], [1, 1]) == 1.5 + 2 * (3.0 - 1.0)
