"""Prices of rows on a clock that the test sets."""

import pytest

from graft.integrations.row_price import RowPrice


def after(base, rise, rows, tokens):
    clock = RowPrice()
    for step in range(200):
        now = rows + step % 8
        clock.observe(now, tokens, base + rise * now)
    return clock


@pytest.mark.parametrize(("base", "rise"), [(0.05, 0.002), (1.0, 0.0), (0.01, 0.01)])
def test_a_row_costs_the_tokens_of_its_time(base, rise):
    mean = base + rise * 11.5
    assert after(base, rise, 8, 12).price(8) == pytest.approx(rise * 12 / mean, rel=0.3, abs=0.03)


def test_the_first_price_grows_with_the_batch():
    assert 0 < RowPrice().price(1) < RowPrice().price(16) < 1


def test_one_slow_step_is_a_disturbance():
    calm, disturbed = after(0.05, 0.002, 8, 12), after(0.05, 0.002, 8, 12)
    disturbed.observe(15, 12, 30.0)
    assert disturbed.price(8) < 2 * calm.price(8)


def test_drafting_is_tried_again_after_a_while_of_none():
    clock = after(0.01, 0.03, 8, 8)
    dear = clock.price(8)
    for _ in range(400):
        clock.observe(8, 8, 0.25)
    assert clock.price(8) < 0.5 * dear
