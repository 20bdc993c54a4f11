"""The compiled chain equals the plain search and calibration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.draft.copies.calibration import LONGEST, hit_rate
from graft.draft.copies.chain_lookup import ChainLookup
from graft.match.suffix_automaton import SuffixAutomaton

TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def ids(tokens):
    return np.array(tokens, dtype=np.int32)


def hit_rates(lookup):
    lengths = range(LONGEST + 1)
    return np.array([hit_rate(lookup._counts, lookup._prior, length) for length in lengths])


@pytest.mark.parametrize(
    ("text", "chain"),
    [
        ([1, 2, 3, 4, 1, 2], [3, 4, 1, 2]),  # ends with the text
        ([1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 4, 1, 2], [3, 9, 1, 2]),  # twice against once
        ([1, 2, 3], []),  # no match
    ],
)
def test_chain_follows_the_most_frequent_continuation(text, chain):
    lookup = ChainLookup(4)
    scores = lookup.extend(ids(text))
    assert lookup.tokens(4) == chain
    assert len(scores) == len(chain)
    assert all(np.diff(scores) < 0)


@given(TEXT)
def test_first_token_equals_the_best_first_search(text):
    lookup, index = ChainLookup(4), SuffixAutomaton(min_score=0.02)
    scores = lookup.extend(ids(text))
    index.extend(ids(text))
    found = index.lookup(16, hit_rates(lookup))
    top = [
        float(score)
        for score, parent in zip(found.scores, found.parents, strict=True)
        if parent < 0
    ]
    assert len(scores) == 0 if not top else scores[0] == pytest.approx(top[0], abs=1e-6)


def test_hit_rate_falls_after_rejections_and_rises_again():
    lookup = ChainLookup(1)
    lookup.extend(ids([1, 2, 3, 1, 2]))
    before = hit_rates(lookup)[2]
    lookup.extend(ids([7]))
    failed = hit_rates(lookup)[2]
    assert failed < before
    for _ in range(40):
        lookup.extend(ids([1]))
        lookup.extend(ids([2]))
        lookup.extend(ids([3]))
    assert hit_rates(lookup)[2] > failed


@given(TEXT, TEXT)
def test_is_prefix_of(text, other):
    lookup = ChainLookup(4)
    lookup.extend(ids(text))
    assert lookup.is_prefix_of(ids(text + other))
    assert lookup.is_prefix_of(ids(other)) == (other[: len(text)] == text)
