"""Steps are measured from start to start, and the last of a sequence to its tokens."""

import pytest

from graft.draft.pacing.step_timer import StepSample, StepTimer


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def step(timer, clock, sequences, seconds, tokens, gap=0.0):
    sample = timer.begin(sequences)
    clock.now += seconds
    timer.add_tokens(tokens)
    clock.now += gap
    return sample


def test_step_ends_where_the_next_one_starts(clock):
    timer = StepTimer(clock)
    assert step(timer, clock, [1], 2.0, 3, gap=0.5) is None
    assert step(timer, clock, [1], 1.0, 1) == StepSample(3, 2.5)


def test_step_of_other_sequences_is_unknown(clock):
    timer = StepTimer(clock)
    step(timer, clock, [1], 2.0, 3)
    assert step(timer, clock, [2], 1.0, 1) is None


def test_last_step_ends_with_its_tokens_and_the_usual_gap(clock):
    timer = StepTimer(clock)
    step(timer, clock, [1], 2.0, 1, gap=0.5)
    step(timer, clock, [1], 2.0, 1)
    timer.close()
    clock.now += 100
    assert timer.begin([2]) == StepSample(1, 2.5)


def test_step_without_tokens_is_dropped(clock):
    timer = StepTimer(clock)
    step(timer, clock, [1], 2.0, 0)
    assert timer.begin([1]) is None


def test_tokens_after_a_finished_sequence_do_not_count(clock):
    timer = StepTimer(clock)
    step(timer, clock, [1, 2], 1.0, 2)
    timer.close()
    timer.add_tokens(5)
    assert timer.begin([2]) == StepSample(2, 1.0)
