"""A ledger tells promises that are kept from those that are not, whatever the machine does."""

import pytest

from graft.draft.pacing.ledger import Expected, Ledger

PLAIN, DRAFTED = Expected(1.0, 1.0), Expected(3.0, 2.0)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def lived(rounds, *, drafted_seconds, plain_seconds, tokens):
    """A ledger after rounds with and without drafts in turn."""
    clock = Clock()
    ledger = Ledger(clock)
    for _ in range(rounds):
        for drafted in (True, False):
            ledger.begin([1])
            ledger.expect(DRAFTED if drafted else PLAIN, drafted=drafted)
            ledger.came(tokens if drafted else 1)
            clock.now += drafted_seconds if drafted else plain_seconds
    ledger.begin([1])
    return ledger


@pytest.mark.parametrize(
    ("drafted_seconds", "plain_seconds", "tokens", "worth"),
    [
        (2.0, 1.0, 3, 1.0),
        (4.0, 2.0, 3, 1.0),  # a busier machine than the one measured: all rounds take longer
        (2.0, 0.8, 3, 0.8),  # plain steps are faster than was thought
        (2.0, 1.0, 2, 2 / 3),  # drafts come true less often than was thought
        (1.5, 1.0, 3, 4 / 3),
    ],
)
def test_promises_are_worth_what_comes_of_them(drafted_seconds, plain_seconds, tokens, worth):
    ledger = lived(300, drafted_seconds=drafted_seconds, plain_seconds=plain_seconds, tokens=tokens)
    assert ledger.worth == pytest.approx(worth, rel=0.01)


def test_at_first_promises_are_believed_and_then_less_and_less():
    values = [
        lived(n, drafted_seconds=4.0, plain_seconds=1.0, tokens=3).worth for n in (0, 1, 5, 50)
    ]
    assert values[0] == 1
    assert values == sorted(values, reverse=True)


def test_rounds_of_others_and_rounds_that_bring_nothing_do_not_count():
    clock = Clock()
    ledger = Ledger(clock)
    for whose in range(50):  # a new sequence every time: nobody knows what happened in between
        ledger.begin([whose])
        ledger.expect(DRAFTED, drafted=True)
        ledger.came(1)
        clock.now += 50
    for _ in range(50):
        ledger.begin([1])
        ledger.expect(DRAFTED, drafted=True)
        clock.now += 50
    assert ledger.worth == 1


def test_a_pause_counts_little():
    clock = Clock()
    ledger = Ledger(clock)
    for seconds in (2.0, 3600.0, 2.0):
        ledger.begin([1])
        ledger.expect(DRAFTED, drafted=True)
        ledger.came(3)
        clock.now += seconds
    ledger.begin([1])
    assert ledger.worth > 0.6
