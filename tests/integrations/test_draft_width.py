"""The number of draft tokens that all requests of a step get."""

from random import Random

import pytest

from graft.integrations.draft_width import PROBED, DraftWidth, accepted_at
from graft.integrations.step_times import StepTimes


def measured(
    slope: float, requests: int = 1, accepted: int = 1, drafts: float = 0.15
) -> DraftWidth:
    """After steps of various widths that take 1, `drafts` with any draft, `slope` per row."""
    width = DraftWidth(15)
    for drafted in [each for each in (0, 1, 3, 7, 15) * 10 for _ in range(4)]:
        counts = [1 + min(accepted, drafted)] * requests
        seconds = 1.0 + drafts * (drafted > 0) + slope * requests * (1 + drafted)
        width.observe(drafted, counts, seconds)
    return width


def test_likely_drafts_are_long_and_unlikely_ones_are_none():
    width = measured(0.005)
    assert width.choose(1, accepted_at([0.98])) == 15
    assert 0 < width.choose(1, accepted_at([0.6])) < 15
    assert width.choose(1, accepted_at([0.05])) == 0
    assert width.choose(1, accepted_at([0.0])) == 0


def test_rows_that_cost_much_shorten_drafts():
    cheap, dear = measured(0.002), measured(0.2)
    assert cheap.choose(1, accepted_at([0.8])) > dear.choose(1, accepted_at([0.8]))


def test_what_any_draft_costs_is_measured():
    cheap, dear = measured(0.001, requests=16), measured(0.001, requests=16, drafts=0.7)
    rates = [0.4] * 16
    assert cheap.choose(16, accepted_at(rates)) > 0
    assert dear.choose(16, accepted_at(rates)) == 0
    assert dear.choose(16, accepted_at([0.95] * 16)) == 15


def test_steps_beyond_the_largest_graph_are_avoided():
    width = DraftWidth(15)
    for drafted in [each for each in (0, 1, 3, 7, 15) * 10 for _ in range(3)]:
        width.observe(drafted, [1 + drafted // 2] * 64, 5.0 if drafted == 15 else 1.5)
    assert width.choose(64, accepted_at([0.9] * 64)) == 7


def run(width: DraftWidth, steps: int, costs: dict[int, float], accepted: float, rate: float):
    """What is chosen in so many steps, which take these seconds by draft tokens."""
    chosen, sure = [], accepted_at([rate] * 16)
    for _ in range(steps):
        chosen.append(width.choose(16, sure))
        right = min(accepted, chosen[-1])
        width.observe(chosen[-1], [1 + right] * 16, costs[chosen[-1]])
    return chosen


def test_a_slow_moment_decides_nothing():
    """Plain steps are timed while requests arrive, drafts after that: 1.5 plain steps each."""
    width, costs = DraftWidth(15, fewest=15), {0: 2.0, 15: 3.0}
    run(width, 200, costs, 2, 0.7)
    for _ in range(40):
        width.observe(0, [1] * 16, 3.0)
    for _ in range(5):
        width.observe(15, [3] * 16, 3.0)
    assert run(width, 300, costs, 0.3, 0.3)[-200:].count(15) < 10


def test_drafts_that_take_longer_than_they_did_end():
    """While much was copied no plain step was timed."""
    width = DraftWidth(15, fewest=15)
    assert run(width, 300, {0: 2.0, 15: 2.5}, 10, 0.95).count(0) < 20
    chosen = run(width, 300, {0: 2.0, 15: 3.6}, 0.5, 0.5)
    assert chosen[150:].count(15) < 15


def test_fewer_are_drafted_if_fewer_are_accepted_than_expected():
    sure = DraftWidth(15, fewest=15)
    run(sure, 200, {0: 2.0, 15: 3.0}, 5, 0.9)
    assert sure.choose(16, accepted_at([0.9] * 16)) == 15
    doubting = DraftWidth(15, fewest=15)
    run(doubting, 200, {0: 2.0, 15: 3.0}, 0, 0.9)
    assert doubting.choose(16, accepted_at([0.9] * 16)) == 0


def test_costs_of_other_batches_are_near_those_of_the_nearest():
    times = StepTimes()
    for requests, drafted in ((4, 0), (4, 3), (64, 0), (64, 3)) * 10:
        slow = requests * 0.01 + 0.5 * (drafted > 0)
        times.observe(requests, drafted, 0.002 * (1.0 + slow))
    dearer = times.cost(8, 3) / times.cost(8, 0)
    assert dearer == pytest.approx(times.cost(4, 3) / times.cost(4, 0), rel=0.05)
    assert times.cost(8, 7) > times.cost(8, 3)
    assert times.unseen(8, 3) > times.unseen(4, 0) > times.unseen(64, 3) == 0


def test_one_long_step_is_no_cost():
    times = StepTimes()
    for drafted, seconds in ((0, 2.0), (7, 2.4), (0, 2.0)) * 3:
        for step in range(4):
            times.observe(16, drafted, 30.0 if drafted and not step else seconds)
    assert times.cost(16, 7) == pytest.approx(1.2)


def test_costs_stay_while_steps_of_one_kind_run():
    """Whatever slows them: prompts, another process, longer texts."""
    times, random = StepTimes(), Random(0)
    for drafted in (0, 7, 0, 7) * 3:
        for _ in range(4):
            times.observe(64, drafted, 2.8 if drafted else 2.0)
    for step in range(4000):
        kind, usual = (0, 2.0) if step < 2000 else (7, 2.8)
        times.observe(64, kind, usual * random.choice((0.95, 1.0, 1.05, 7.0)) * (1 + step / 2000))
        assert times.cost(64, 7) == pytest.approx(1.4, rel=0.15)


def test_widths_compared_with_each_other_go_back_to_plain_steps():
    times = StepTimes()
    for _ in range(4):
        times.observe(4, 0, 2.0)
    for drafted in (7, 15) * 50:
        for _ in range(3):
            times.observe(4, drafted, 2.5 if drafted == 7 else 3.0)
    assert times.cost(4, 7) == pytest.approx(1.25)
    assert times.cost(4, 15) == pytest.approx(1.5)


def test_drafts_begin_only_if_they_also_pay_for_the_wait_behind_them():
    """A plain step takes 2, a step with drafts 2.5, but a plain step right after it 4."""
    width, some = DraftWidth(15), accepted_at([0.4])
    for _ in range(100):
        for drafted in (0, 0, 0, 1, 1, 3, 3, 7, 7, 15, 15):
            seconds = 2.5 if drafted else 2.0
            width.observe(drafted, [1], seconds)
        width.observe(0, [1], 4.0)
    rates = accepted_at([0.0]), some, accepted_at([0.95]), some
    chosen = [width.choose(1, each) for each in rates]
    assert (chosen[0], chosen[1], chosen[2]) == (0, 0, 15)
    assert chosen[3] > 0  # stopping now would not save the wait


def test_a_step_that_took_very_long_once_does_not_end_drafts():
    width = DraftWidth(15)
    for drafted in (0, 0, 15):
        width.observe(drafted, [1 + drafted], 1.0)
    width.observe(15, [16], 500.0)  # something was compiled
    assert width.choose(1, accepted_at([0.95])) > 0


class Batch:
    """Requests of which some copy; the engine reports rates as `copy_triton` does."""

    PRIOR = {2: (2.0, 2.0), 16: (3.6, 0.4)}  # by match length: right, wrong
    RIGHT = {2: 0.15, 16: 0.95}

    def __init__(self, copying: int, requests: int, seed: int = 0) -> None:
        self.random, self.requests, self.copying = Random(seed), requests, copying
        self.seen = dict(self.PRIOR)

    def lengths(self) -> list[int]:
        return [16 if place < self.copying else 2 for place in range(self.requests)]

    def rates(self) -> list[float]:
        return [self.seen[each][0] / sum(self.seen[each]) for each in self.lengths()]

    def step(self, width: int) -> list[int]:
        counts = []
        for length in self.lengths():
            right = 0
            while right < width and self.random.random() < self.RIGHT[length]:
                right += 1
            counts.append(1 + right)
            good, bad = self.seen[length]
            known = right if width else self.random.random() < self.RIGHT[length]
            self.seen[length] = good + known, bad + (known < max(width, 1))
        return counts

    def seconds(self, width: int, step: int) -> float:
        """As vLLM 0.24 takes on an H200 for a model of 1.5B, in milliseconds; all steps take longer
        for a while now and then."""
        rows = self.requests * (1 + width)
        usual = 15.0 if rows > 512 else 1.9 + 0.005 * rows + 0.9 * (width > 0)
        return usual * self.random.uniform(0.9, 1.2) * (1.5 if step % 300 < 40 else 1.0)

    def speed(self, choose) -> float:
        """Tokens per millisecond."""
        tokens = spent = last = 0.0
        for step in range(1500):
            width = choose(self, step)
            counts, seconds = self.step(width), self.seconds(width, step)
            seconds *= 1.25 if last and not width else 1.0
            last = width
            self.observe(width, counts, seconds)
            if step >= 300:
                tokens, spent = tokens + sum(counts), spent + seconds
        return tokens / spent

    def observe(self, *step) -> None:
        pass


@pytest.mark.parametrize("requests", [1, 4, 16, 64])
@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_near_the_best_width_whatever_is_copied(requests, share):
    copying = round(share * requests)
    fixed = {
        width: Batch(copying, requests).speed(lambda *_, width=width: width)
        for width in (0, 1, 3, 7, 15)
    }
    chooser, batch = DraftWidth(15), Batch(copying, requests)
    batch.observe = chooser.observe
    found = batch.speed(lambda batch, _: chooser.choose(requests, accepted_at(batch.rates())))
    assert found > 0.95 * max(fixed.values())
    assert copying < requests or max(fixed, key=fixed.get) > 0  # copies pay


def test_one_copying_request_of_many_gets_no_draft_if_rows_cost():
    width = measured(0.01, requests=16)
    assert width.choose(16, accepted_at([0.9] + [0.0] * 15)) == 0
    assert width.choose(16, accepted_at([0.9] * 16)) > 0


def test_all_widths_make_rows_of_usual_graph_sizes():
    assert {DraftWidth(16).choose(0), DraftWidth(15).choose(0)} == {16, 15}
    found = {measured(0.01).choose(1, accepted_at([rate / 50])) for rate in range(50)}
    assert found <= {0, 1, 3, 7, 15}


@pytest.mark.parametrize("accepted", [0, 15])
def test_without_rates_observed_ones_count(accepted):
    width = measured(0.005, accepted=accepted)
    chosen = [width.choose(1) for _ in range(2 * PROBED + 2)]
    if accepted:
        assert chosen.count(15) > 0.8 * len(chosen)
    else:
        assert chosen[0] == 0
        assert len(chosen) - chosen.count(0) == 2  # tried every PROBED steps


def test_what_is_not_chosen_is_tried_now_and_then():
    costs = {0: 1.8, 1: 2.0, 3: 2.0, 7: 2.0, 15: 2.0}
    width = DraftWidth(15)
    tried = run(width, 2000, costs, 7, 0.9)
    assert tried.count(15) > 1900
    assert tried.count(7) > 5
    assert 3 <= tried.count(0) < 40
    tried = run(width, 2000, costs, 0, 0.1)
    assert tried[100:].count(0) > 1800
    tried = run(width, 2000, costs, 0, 0.0)
    assert set(tried[100:]) == {0}  # nothing is found that could be drafted


def test_a_step_without_output_says_nothing():
    width = DraftWidth(7)
    width.observe(7, [], 1.0)
    assert width.choose(1, accepted_at([0.9])) > 0


def test_trials_end_where_no_step_is_timed():
    """Prompts between all steps leave none that could be."""
    width = DraftWidth(15)
    chosen = [width.choose(64, accepted_at([0.15] * 64)) for _ in range(1000)]
    assert len(chosen) - chosen.count(0) < 30


def test_drafts_that_get_cheaper_are_found():
    """They took long while something was compiled."""
    width = DraftWidth(15, fewest=15)
    assert run(width, 200, {0: 1.0, 15: 3.2}, 2, 0.75)[50:].count(15) < 10
    assert run(width, 3000, {0: 1.0, 15: 1.0}, 2, 0.75)[-1000:].count(0) < 50


def test_a_plain_step_right_after_drafts_is_unusual():
    width = DraftWidth(15)
    assert [width.observe(drafted, [1], 1.0) for drafted in (0, 3, 0, 0)] == [
        True,
        True,
        False,
        True,
    ]
    assert not width.observe(0, [], 1.0)


def test_a_step_may_take_no_time():
    width = DraftWidth(15, fewest=15)
    for drafted in (0, 15, 0, 15):
        width.observe(drafted, [1 + drafted], 0.0)
    assert width.choose(1, accepted_at([0.9])) > 0
    for drafted in (0, 0, 0, 15, 15, 15) * 30:
        width.observe(drafted, [1], 0.003 if drafted else 0.002)
    assert width.choose(1, accepted_at([0.2])) == 0
