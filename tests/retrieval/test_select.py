import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graft.retrieval.passage import Passage
from graft.retrieval.select import fill, ranking

SIZES = st.lists(st.integers(1, 50), max_size=60)


def passages(*counts):
    """Passages of ten characters; the number of each document is given."""
    return [
        Passage(f"{name}.txt", 10 * i, 10 * i + 10, f"{name} words {i}")
        for name, count in enumerate(counts)
        for i in range(count)
    ]


def test_hits_are_ranked_by_score_then_their_neighbours():
    ranked = ranking(passages(6), np.array([0, 0, 2.0, 0, 0, 3.0]))
    assert ranked == [5, 2, 4, 3, 1]


def test_equal_scores_keep_the_order_of_the_documents():
    assert ranking(passages(4), np.ones(4)) == [0, 1, 2, 3]


def test_neighbours_are_of_the_same_document():
    assert ranking(passages(2, 2), np.array([0, 1.0, 0, 0])) == [1, 0]


def test_text_is_ranked_once():
    twice = [*passages(2), Passage("copy.txt", 0, 10, "0 words 1\n")]
    assert ranking(twice, np.array([1.0, 3.0, 3.0])) == [1, 0]


def test_without_hits_the_first_passages_are_ranked_first():
    assert ranking(passages(3, 1, 2), np.zeros(6)) == [0, 3, 4, 1, 5, 2]


@given(SIZES, st.integers(0, 300))
def test_selection_fits_and_keeps_its_rank(sizes, budget):
    taken = fill(range(len(sizes)), sizes.__getitem__, budget)
    assert sum(sizes[number] for number in taken) <= budget
    assert taken == sorted(set(taken))
    if sizes and sizes[0] <= budget:
        assert taken[0] == 0


def test_few_sizes_are_computed():
    asked = []

    def size(number):
        asked.append(number)
        return 10

    assert len(fill(range(100_000), size, 55)) == 5
    assert len(asked) < 30
