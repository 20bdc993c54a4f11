"""Parameters that are tried every day, and those that can wait for `make test-slow`."""

from collections.abc import Iterable

import pytest


def daily(values: Iterable[object], *chosen: object) -> list[object]:
    """All values, those that are not `chosen` marked slow."""
    found = list(values)
    unknown = [each for each in chosen if each not in found]
    assert not unknown, f"not among the values: {unknown}"
    return [each if each in chosen else _slow(each) for each in found]


def _slow(value: object) -> object:
    several = value if isinstance(value, tuple) else (value,)
    return pytest.param(*several, marks=pytest.mark.slow)
