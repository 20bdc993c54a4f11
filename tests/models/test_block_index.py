"""Texts that begin alike are found block by block, as comparing each with each would find them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.models.arena import BLOCK, Extent
from graft.models.block_index import BlockIndex


def text(blocks, rest=0):
    """Tokens of whole blocks, each filled with one number, and some more."""
    return np.repeat(np.array([*blocks, 9], np.int32), [BLOCK] * len(blocks) + [rest])


def extent(committed):
    return Extent(0, committed, committed)


def common(first, second):
    """By comparing one by one."""
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count // BLOCK * BLOCK


blocks = st.lists(st.integers(0, 1), max_size=4)
texts = st.builds(text, blocks, st.sampled_from([0, 1, BLOCK - 1]))


@given(
    known=st.lists(st.tuples(texts, st.integers(0, 4 * BLOCK)), max_size=6),
    gone=st.sets(st.integers(0, 5)),
    wanted=texts,
)
def test_it_finds_what_comparing_all_of_them_finds(known, gone, wanted):
    index, left = BlockIndex(), []
    entries = [(tokens, extent(committed)) for tokens, committed in known]
    for tokens, each in entries:
        index.add(tokens, each)
    for i, (tokens, each) in enumerate(entries):
        if i in gone:
            index.remove(tokens, each)
        else:
            left.append((tokens, each))
    found, count = index.longest(wanted)
    committed = [common(tokens[: each.total], wanted) for tokens, each in left]
    assert count == max(committed, default=0)
    assert found is (left[committed.index(count)][1] if count else None)
    assert index.common(wanted) == max((common(tokens, wanted) for tokens, _ in left), default=0)


def test_whose_text_goes_on_counts_as_beginning_with_it():
    index, longer, other = BlockIndex(), extent(0), extent(0)
    index.add(text([1, 2, 3]), longer)
    index.add(text([1, 3]), other)
    assert index.beginning_with(text([1])) == [longer, other]
    assert index.beginning_with(text([1, 2])) == [longer]
    assert index.beginning_with(text([1, 2, 3, 4])) == index.beginning_with(text([])) == []


def test_nothing_is_left_of_what_was_removed():
    index, one = BlockIndex(), extent(3 * BLOCK)
    index.add(text([1, 2, 3]), one)
    index.remove(text([1, 2, 3]), one)
    assert index.longest(text([1, 2, 3])) == (None, 0)
    assert index.common(text([1])) == 0
    with pytest.raises(KeyError):
        index.remove(text([1, 2, 3]), one)
