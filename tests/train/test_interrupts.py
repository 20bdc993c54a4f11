"""Ctrl-C and SIGTERM ask once and insist the second time."""

import os
import signal

import pytest

from graft.train.interrupts import stop_after_step


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_recorded_and_handlers_are_restored(number):
    before = signal.getsignal(number)
    with stop_after_step() as stopping:
        assert not stopping()
        os.kill(os.getpid(), number)
        assert stopping()
        assert signal.getsignal(number) == before  # the next one acts at once
    assert signal.getsignal(number) == before
