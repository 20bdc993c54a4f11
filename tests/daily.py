"""Parameters for `make test`, and those for `make test-slow` only."""

from collections.abc import Iterable

import pytest


def daily(values: Iterable[object], *chosen: object) -> list[object]:
    """All values; those not `chosen` are marked slow."""
    found = list(values)
    unknown = [each for each in chosen if each not in found]
    assert not unknown, f"not among the values: {unknown}"
    return [each if each in chosen else _slow(each) for each in found]


def _slow(value: object) -> object:
    several = value if isinstance(value, tuple) else (value,)
    return pytest.param(*several, marks=pytest.mark.slow)
