"""The number of draft tokens that all requests of a step get."""

import pytest

from graft.integrations.draft_width import PROBED, DraftWidth


def measured(slope: float, requests: int = 1, accepted: int = 1) -> DraftWidth:
    """After steps of various widths that take 1 and `slope` more per row."""
    width = DraftWidth(15)
    for drafted in (0, 1, 3, 7, 15) * 40:
        counts = [1 + min(accepted, drafted)] * requests
        width.observe(drafted, counts, 1.0 + slope * requests * (1 + drafted))
    return width


def test_likely_drafts_are_long_and_unlikely_ones_are_none():
    width = measured(0.005)
    assert width.choose(1, [0.98]) == 15
    assert 0 < width.choose(1, [0.6]) < 15
    assert width.choose(1, [0.05]) == 0
    assert width.choose(1, [0.0]) == 0


def test_rows_that_cost_much_shorten_drafts():
    cheap, dear = measured(0.002), measured(0.2)
    assert cheap.choose(1, [0.8]) > dear.choose(1, [0.8])


def test_one_copying_request_of_many_gets_no_draft_if_rows_cost():
    width = measured(0.01, requests=16)
    assert width.choose(16, [0.9] + [0.0] * 15) == 0
    assert width.choose(16, [0.9] * 16) > 0


def test_all_widths_make_rows_of_usual_graph_sizes():
    assert {DraftWidth(16).choose(0), DraftWidth(15).choose(0)} == {16, 15}
    found = {measured(0.01).choose(1, [rate / 50]) for rate in range(50)}
    assert found <= {0, 1, 3, 7, 15}


@pytest.mark.parametrize("accepted", [0, 15])
def test_without_rates_observed_ones_count(accepted):
    width = measured(0.005, accepted=accepted)
    chosen = [width.choose(1) for _ in range(2 * PROBED + 2)]
    if accepted:
        assert set(chosen) == {15}
    else:
        assert chosen[0] == 0
        assert chosen.count(0) == len(chosen) - 2  # tried every PROBED steps


def test_a_step_without_output_says_nothing():
    width = DraftWidth(7)
    width.observe(7, [], 1.0)
    assert width.choose(1, [0.9]) > 0
