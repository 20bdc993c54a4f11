"""The number of draft tokens that all requests of a step get."""

from random import Random

import pytest

from graft.integrations.draft_width import PROBED, DraftWidth, accepted_at


def measured(
    slope: float, requests: int = 1, accepted: int = 1, drafts: float = 0.15
) -> DraftWidth:
    """After steps of various widths that take 1, `drafts` with any draft, `slope` per row."""
    width = DraftWidth(15)
    for drafted in (0, 0, 1, 3, 7, 15) * 40:
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
    rates = [0.3] * 16
    assert cheap.choose(16, accepted_at(rates)) > 0
    assert dear.choose(16, accepted_at(rates)) == 0
    assert dear.choose(16, accepted_at([0.95] * 16)) == 15


def test_steps_beyond_the_largest_graph_are_avoided():
    width = DraftWidth(15)
    for drafted in (0, 0, 1, 3, 7, 15) * 20:
        width.observe(drafted, [1 + drafted // 2] * 64, 5.0 if drafted == 15 else 1.5)
    assert width.choose(64, accepted_at([0.9] * 64)) == 7


def test_drafts_begin_only_if_they_also_pay_for_the_wait_behind_them():
    """A plain step takes 2, a step with drafts 2.5, but a plain step right after it 4."""
    width, some = DraftWidth(15), accepted_at([0.25])
    for _ in range(100):
        for drafted, seconds in ((3, 2.5), (15, 2.5), (0, 4.0), (0, 2.0), (0, 2.0)):
            width.observe(drafted, [1], seconds)
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
    """Requests of which some copy; the engine reports rates as `copy_triton` does: those seen,
    which tend to an optimistic prior in plain steps."""

    def __init__(self, copying: int, requests: int, seed: int = 0) -> None:
        self.random, self.requests, self.copying = Random(seed), requests, copying
        self.seen = dict(self.PRIOR)

    PRIOR = {2: (2.0, 2.0), 16: (3.6, 0.4)}  # by match length: accepted, rejected
    RIGHT = {2: 0.15, 16: 0.95}

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
            if width:
                good, bad = self.seen[length]
                self.seen[length] = good + right, bad + (right < width)
        if not width:
            self.seen = {
                key: tuple(0.99 * one + 0.01 * two for one, two in zip(*both, strict=True))
                for key, both in ((key, (self.seen[key], self.PRIOR[key])) for key in self.seen)
            }
        return counts

    def seconds(self, width: int) -> float:
        """As vLLM 0.24 takes on an H200 for a model of 1.5B, in milliseconds."""
        rows = self.requests * (1 + width)
        if rows > 512:
            return 15.0
        return 1.9 + 0.003 * rows + (1.2 + 0.01 * self.requests) * (width > 0)

    def speed(self, choose) -> float:
        """Tokens per millisecond."""
        tokens = spent = last = 0.0
        for step in range(1500):
            width = choose(self, step)
            counts, seconds = self.step(width), self.seconds(width)
            if last and not width:  # the device waits for the host
                seconds = max(seconds, self.seconds(1))
            last = width
            self.observe(width, counts, seconds)
            if step >= 300:
                tokens, spent = tokens + sum(counts), spent + seconds
        return tokens / spent

    def observe(self, *step) -> None:
        pass


@pytest.mark.parametrize("requests", [1, 4, 16, 64])
@pytest.mark.parametrize("share", [0, 0.25, 1])
def test_near_the_best_width_whatever_is_copied(requests, share):
    copying = round(share * requests)
    fixed = {
        width: Batch(copying, requests).speed(lambda *_, width=width: width)
        for width in (0, 1, 3, 7, 15)
    }
    chooser, batch = DraftWidth(15), Batch(copying, requests)
    batch.observe = chooser.observe
    found = batch.speed(lambda batch, _: chooser.choose(requests, accepted_at(batch.rates())))
    assert found > 0.97 * max(fixed.values())
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
    trials = 4  # of other widths, after 4, 8, 16 and 32 steps
    if accepted:
        assert trials <= len(chosen) - chosen.count(15) <= 2 * trials  # two plain steps a trial
    else:
        assert chosen[0] == 0
        assert 2 <= len(chosen) - chosen.count(0) <= 2 + trials  # tried every PROBED steps


def test_a_step_without_output_says_nothing():
    width = DraftWidth(7)
    width.observe(7, [], 1.0)
    assert width.choose(1, accepted_at([0.9])) > 0
