"""Ctrl-C and SIGTERM ask once and insist the second time."""

import os
import signal

import pytest

from graft.train.interrupts import stops_gently


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_and_handlers_come_back(number):
    before = signal.getsignal(number)
    with stops_gently() as stopping:
        assert not stopping()
        os.kill(os.getpid(), number)
        assert stopping()
        assert signal.getsignal(number) == before  # the next one acts at once
    assert signal.getsignal(number) == before
