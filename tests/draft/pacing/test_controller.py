"""The controller keeps its promise: drafting never costs more than ALPHA of plain decoding."""

from collections import Counter
from itertools import product

import pytest
from daily import daily
from simulated_engine import (
    BUDGET,
    SimulatedEngine,
    copies,
    late,
    model_bad,
    model_good,
    nothing,
    one_in_ten,
    opening,
    rarely,
    switching,
)

from graft.draft.drafter import DraftContext
from graft.draft.pacing.controller import ALPHA, REFRESH_STEPS, Controller
from graft.draft.pacing.estimator import MIN_STEPS
from graft.models.language_model import TargetStep

CONSTANT = 12.0  # seconds, i.e. plain steps: first trials of every arm and kind of step


def every_fourth(engine):
    for number in range(40):
        engine.answers(copies if number % 4 == 3 else rarely, length=60)


def mixed_batches(engine):
    for number in range(12):
        batch = (1, 2, 4, 8)[number % 4]
        engine.answers(rarely, 2, length=80, batch=batch)
        engine.answers(copies, length=80, batch=9 - batch, temperature=number % 2)


def model_switching(engine):
    for number in range(10):
        engine.answers(model_good if number % 2 else model_bad, 6)


WORKLOADS = {
    "nothing can be drafted": lambda engine: engine.answers(nothing, 15),
    "drafts are rejected": lambda engine: engine.answers(rarely, 15),
    "everything is copied": lambda engine: engine.answers(copies, 15),
    "one step in ten copies": lambda engine: engine.answers(one_in_ten, 15),
    "every fourth answer copies": every_fourth,
    "copies begin late": lambda engine: engine.answers(late, 4, length=600),
    "copies come and go": lambda engine: engine.answers(switching, 3, length=600),
    "answers begin with a copy": lambda engine: engine.answers(opening, 30, length=60),
    "batch of 8, nothing": lambda engine: engine.answers(rarely, 8, batch=8),
    "batch of 8, copies": lambda engine: engine.answers(copies, 8, batch=8),
    "sampled": lambda engine: engine.answers(rarely, 15, temperature=1.0),
    "batch sizes vary": mixed_batches,
    "a bad model": lambda engine: engine.answers(model_bad, 15),
    "a good model": lambda engine: engine.answers(model_good, 15),
    "a model that is good at times": model_switching,
}


@pytest.mark.parametrize(
    ("host", "model_seconds"),
    daily(product([0.0, 0.05, 0.3], [None, 0.5, 4.0]), (0.0, 4.0), (0.05, None), (0.3, 0.5)),
)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_time_is_bounded_by_plain_decoding(workload, host, model_seconds):
    engine = SimulatedEngine(host=host, model_seconds=model_seconds)
    WORKLOADS[workload](engine)
    assert engine.seconds <= (1 + ALPHA) * engine.plain_seconds + CONSTANT


@pytest.mark.parametrize("between", daily([0.1, 0.6], 0.6))
@pytest.mark.parametrize("workload", WORKLOADS)
def test_time_is_bounded_by_plain_steps_that_run_ahead(workload, between):
    """Drafting waits for the tokens of the last step, plain decoding does not."""
    engine = SimulatedEngine(between=between, model_seconds=0.5)
    WORKLOADS[workload](engine)
    assert engine.seconds <= (1 + ALPHA) * engine.plain_seconds + CONSTANT


@pytest.mark.parametrize(
    ("workload", "speedup"),
    [
        ("nothing can be drafted", 0.99),
        ("one step in ten copies", 1.55),
        ("copies come and go", 1.3),
    ],
)
def test_lookups_that_find_nothing_do_not_keep_steps_from_running_ahead(workload, speedup):
    engine = SimulatedEngine(between=0.3)
    WORKLOADS[workload](engine)
    assert engine.plain_seconds / engine.seconds > speedup


@pytest.mark.parametrize("workload", ["drafts are rejected", "copies come and go", "a bad model"])
def test_time_is_bounded_on_a_noisy_machine(workload):
    """On average: how many steps stall is chance, for plain decoding as well."""
    losses = []
    for seed in range(8):
        engine = SimulatedEngine(model_seconds=2.0, noise=0.1, stall=0.003, seed=seed)
        WORKLOADS[workload](engine)
        stalls = 1 + 4 * engine.stall
        losses.append(engine.seconds - (1 + 2 * ALPHA) * stalls * engine.plain_seconds)
    assert sum(losses) / len(losses) <= CONSTANT


@pytest.mark.parametrize("seed", range(5))
def test_copies_are_found_after_a_busy_time(seed):
    """Other processes held up some of the few steps with lookups: that is not their usual time."""
    engine = SimulatedEngine(model_seconds=2.0, noise=0.3, stall=0.2, seed=seed)
    engine.answers(rarely, 6)
    engine.noise = engine.stall = 0.0
    engine.answers(rarely, 3)
    engine.seconds = engine.plain_seconds = 0.0
    engine.answers(one_in_ten, 8)
    assert engine.plain_seconds / engine.seconds > 1.3


@pytest.mark.parametrize(
    ("workload", "speedup"),
    [
        ("everything is copied", 3.0),
        ("one step in ten copies", 1.6),
        ("every fourth answer copies", 1.15),
        ("copies begin late", 1.4),
        ("copies come and go", 1.4),
        ("batch of 8, copies", 1.6),
    ],
)
def test_copies_are_used_wherever_they_occur(workload, speedup):
    engine = SimulatedEngine()
    WORKLOADS[workload](engine)
    assert engine.plain_seconds / engine.seconds > speedup


def test_model_lets_go_where_lookups_are_too_slow_to_be_compared_with():
    """It follows no sequence for nothing: steps of sequences that it follows do not run ahead."""
    engine = SimulatedEngine(host=20.0, model_seconds=0.5, between=0.5)
    engine.answers(nothing, 20, batch=4)
    assert ("detach", 1) in engine.model.calls
    assert engine.seconds < (1 + ALPHA) * engine.plain_seconds + 20.0 + 2 * CONSTANT


def test_good_model_runs_and_bad_model_is_detached():
    good, bad = SimulatedEngine(model_seconds=0.5), SimulatedEngine(model_seconds=2.0)
    good.answers(model_good, 20)
    bad.answers(model_bad, 20)
    assert good.share(2) > 0.9
    assert bad.share(2) < 0.03
    assert ("detach", 1) in bad.model.calls
    attached = [sequence for call, sequence in bad.model.calls if call == "start"]
    assert len(attached) < 4  # later sequences start without the model


def test_model_that_adds_nothing_to_copies_is_not_used():
    engine = SimulatedEngine(model_seconds=1.0)
    engine.answers(copies, 40)
    assert engine.share(1) > 0.85
    assert engine.share(2) < 0.12


def test_model_that_becomes_good_is_noticed():
    engine = SimulatedEngine(model_seconds=0.5)
    engine.answers(model_bad, 20)
    engine.answers(model_good, 20)
    engine.steps.clear()
    engine.answers(model_good, 20)
    assert engine.share(2) > 0.8


def test_first_steps_are_plain():
    engine = SimulatedEngine()
    engine.answers(copies, length=3)
    assert engine.steps == {0: 3}
    engine.answers(copies, length=40)
    assert engine.steps[0] == MIN_STEPS + 1  # a step is known when the next one starts
    assert engine.steps[1] > 4


def test_plain_estimate_is_refreshed_while_drafting():
    engine = SimulatedEngine()
    engine.answers(copies, 100)
    refreshes = engine.steps[0] - MIN_STEPS - 1
    assert refreshes == pytest.approx(engine.steps[1] / REFRESH_STEPS, abs=2)


@pytest.mark.parametrize("stalled", range(MIN_STEPS))
def test_stalled_plain_step_does_not_make_drafts_look_good(stalled):
    engine = SimulatedEngine(host=0.5)
    for number in range(MIN_STEPS):
        engine.plain_step = 20.0 if number == stalled else 1.0
        engine.answers(nothing, length=1)
    engine.plain_step = 1.0
    engine.answers(nothing, 20)
    assert engine.share(1) < 0.1


def test_slower_machine_slows_plain_and_drafted_steps():
    engine = SimulatedEngine()
    engine.plain_step = 3.0  # of what the cost table says
    engine.answers(copies, 20)
    assert engine.share(1) > 0.9


@pytest.mark.parametrize("overhead", [0.0, 0.3])
def test_budget_carries_the_measured_overhead(overhead):
    engine = SimulatedEngine(host=overhead)
    engine.answers(lambda position, rng: copies(position, rng), 10)
    assert engine.lookup.budget.overhead_seconds == pytest.approx(overhead, abs=0.05)
    assert engine.lookup.budget.seconds is BUDGET.seconds


def test_single_step_answers_are_measured():
    engine = SimulatedEngine(host=0.5)
    for _ in range(300):
        engine.answers(nothing, length=1)
        engine.now += 1000  # idle time between requests
    assert engine.share(1) < 0.1
    engine.steps.clear()
    for _ in range(600):
        engine.answers(copies, length=1)
        engine.now += 1000
    assert engine.share(1) > 0.5


def test_kinds_of_steps_have_estimates_of_their_own():
    engine = SimulatedEngine(host=0.2)
    for _ in range(5):
        engine.answers(nothing, 4, batch=8)
        engine.answers(nothing, 4, temperature=1.0)
        engine.answers(copies, 4)
    engine.steps.clear()
    engine.answers(copies, 4)
    assert engine.share(1) > 0.9
    engine.steps.clear()
    engine.answers(nothing, 4, batch=8)
    assert engine.share(1) < 0.5


@pytest.mark.parametrize("waiting", [0, 3])  # prompts that are read meanwhile
def test_drafter_has_observed_all_steps_since_it_started_when_it_proposes(waiting, monkeypatch):
    """A context has the tokens of the steps before."""
    engine, made, before, complete = SimulatedEngine(host=0.5), Counter(), {}, []
    propose, observe, start = (
        engine.lookup.propose, engine.controller.observe, engine.lookup.start,
    )  # fmt: skip

    def started(context):
        before[context.sequence] = made["step", context.sequence]
        start(context)

    def counted(steps):
        made.update(("step", step.sequence) for step in steps)
        for number in range(-waiting, 0):
            engine.controller._waiting[number] = DraftContext(number, [1], [])
        observe(steps)

    def checked(contexts, budget):
        mine = "step", contexts[0].sequence
        observed = engine.lookup.calls.count(mine)
        complete.append(before[contexts[0].sequence] + observed == made[mine])
        return propose(contexts, budget)

    monkeypatch.setattr(engine.lookup, "start", started)
    monkeypatch.setattr(engine.controller, "observe", counted)
    monkeypatch.setattr(engine.lookup, "propose", checked)
    engine.answers(rarely, 10)
    assert len(complete) > 5
    assert all(complete)


def test_texts_are_not_indexed_where_lookups_cannot_be_afforded():
    engine = SimulatedEngine(host=20.0, between=0.3)
    engine.answers(nothing, 20)
    started = [sequence for call, sequence in engine.lookup.calls if call == "start"]
    finished = [sequence for call, sequence in engine.lookup.calls if call == "finish"]
    assert 1 in started
    assert len(started) < 10
    assert started == finished


def test_texts_that_are_indexed_late_are_paid_for():
    engine = SimulatedEngine(host=2.0, between=0.3, index=2.0)
    engine.answers(nothing, 100, batch=8)
    late = 8 * engine.index
    assert engine.seconds <= (1 + ALPHA) * engine.plain_seconds + CONSTANT + late
    assert engine.seconds >= engine.plain_seconds + 2 * late


def test_steps_of_new_answers_run_ahead_while_no_arm_can_be_afforded():
    engine = SimulatedEngine(host=20.0, between=0.3)
    engine.answers(nothing, 3)
    assert engine.controller.can_skip([DraftContext(100, [1, 2], [], tokens=[3])])


def test_drafts_are_tried_again_when_a_smaller_batch_comes():
    engine = SimulatedEngine(host=3.0, between=0.3)
    engine.answers(nothing, 2, batch=16)
    before = engine.steps[1]
    engine.host = 0.0
    engine.answers(copies, 20)
    assert engine.steps[1] > before + 50


def test_every_call_reaches_the_drafter_of_a_sequence():
    engine = SimulatedEngine(model_seconds=0.5)
    engine.answers(nothing, length=2)
    assert engine.model.calls == [("start", 1), ("step", 1), ("step", 1), ("finish", 1)]


def test_lookups_observe_no_steps_of_an_answer_that_they_do_not_draft():
    engine = SimulatedEngine()
    engine.answers(nothing, length=2)
    assert engine.lookup.calls == [("start", 1), ("finish", 1)]


def test_model_does_not_follow_short_prompts():
    engine = SimulatedEngine(model_seconds=0.5, min_prompt=3)
    engine.answers(nothing, length=1, prompt=2)
    engine.answers(nothing, length=1, prompt=3)
    assert ("start", 1) in engine.lookup.calls
    assert ("start", 2) in engine.model.calls


def test_mixed_batch_drafts_with_both():
    engine = SimulatedEngine(model_seconds=0.1, min_prompt=2)
    drafters, now = (engine.lookup, engine.model), [0.0]
    controller = Controller(drafters[0], lambda: now[0], drafters[1], min_prompt=2)
    contexts = [DraftContext(number, [1] * number, [], tokens=[number]) for number in (1, 2)]
    for context in contexts:
        controller.start(context)
    engine.drafts = {1: one_in_ten(0, engine.rng), 2: one_in_ten(0, engine.rng)}
    seen = set()
    for _ in range(30):
        for drafter in drafters:
            drafter.budget = None
        trees = controller.propose(contexts, BUDGET)
        seen.add(tuple(drafter.budget is not None for drafter in drafters))
        assert [tree.tokens[0] for tree in trees] == [1, 2]
        now[0] += 1.0
        controller.observe([TargetStep(number, [5]) for number in (1, 2)])
    assert (True, True) in seen
