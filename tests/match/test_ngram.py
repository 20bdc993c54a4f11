"""Prompt lookup, copying and n-gram counts against versions that rescan the text."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.errors import InputError
from graft.match.copy_index import CopyIndex
from graft.match.matches import Matches
from graft.match.ngram import NgramCounts, NgramIndex

FIELDS = ("tokens", "parents", "match_lengths", "counts", "totals", "scores", "positions")

BORDER = -1
TRUST = np.array([0.0, 0.3, 0.5, 0.7, 0.8, 0.9])
ALL = [NgramIndex, CopyIndex, NgramCounts]

texts = st.lists(st.integers(-1, 3), max_size=60)  # -1 is a border
afters = st.lists(st.integers(0, 3), max_size=4)  # what is imagined to follow


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    for kind in ALL:
        kind.warm_up()


def feed(index, text, step=1000):
    piece = []
    for token in [*text, None]:
        if token is None or token == BORDER or len(piece) == step:
            index.extend(np.array(piece, dtype=np.int32))
            piece = []
        if token == BORDER:
            index.border()
        elif token is not None:
            piece.append(token)
    return index


def trust(n):
    return TRUST[min(n, len(TRUST) - 1)]


def is_same(left: Matches, right: Matches) -> bool:
    return all(np.array_equal(getattr(left, f), getattr(right, f)) for f in FIELDS)


def naive_prompt_lookup(text, max_ngram, length, after=()):
    """All windows in order, as the reference implementation does, but never over a border."""
    for n in range(max_ngram, 0, -1):
        end = [*text, *after][-n:]
        if len(end) < n or BORDER in end:
            continue
        for start in range(len(text) - n):
            run = text[start + n : start + n + length]
            if text[start : start + n] == end and len(run) == length and BORDER not in run:
                return n, start + n
    return 0, -1


@given(texts, afters, st.integers(1, 4), st.integers(1, 5), st.integers(0, 6))
@settings(deadline=None, max_examples=200)
def test_prompt_lookup_finds_the_first_place_with_a_complete_continuation(
    text, after, n, length, limit
):
    index = feed(NgramIndex(max_ngram=n, length=length), text)
    found = index.lookup(limit, TRUST, after)
    matched, start = naive_prompt_lookup(text, n, length, after)
    size = min(limit, length) if matched else 0
    assert found.tokens.tolist() == text[start : start + size]
    assert found.positions.tolist() == list(range(start, start + size))
    assert found.parents.tolist() == list(range(-1, size - 1))
    assert found.match_lengths.tolist() == [matched] * size
    assert found.counts.tolist() == found.totals.tolist() == [1] * size
    assert found.scores == pytest.approx([trust(matched) ** (i + 1) for i in range(size)])


def match_length(text, place, end, max_match):
    run, limit = 0, min(max_match, place + 1, len(end))
    while run < limit and text[place - run] == end[-1 - run] != BORDER:
        run += 1
    return run


def is_prefix(left, right):
    return right[: len(left)] == left


def naive_branches(text, max_match, min_match, branches, length, after=()):
    """(agreement, start, run) of the branches, the best first."""
    end = [*text, *after]
    places = [(match_length(text, place, end, max_match), place) for place in range(len(text) - 1)]
    chosen = []
    for matched, place in sorted(places, reverse=True):
        run = text[place + 1 : place + 1 + length]
        run = run[: run.index(BORDER)] if BORDER in run else run
        if matched < min_match or not run or any(is_prefix(run, other[2]) for other in chosen):
            continue
        row = next((i for i, other in enumerate(chosen) if is_prefix(other[2], run)), len(chosen))
        if row < branches:
            chosen[row : row + 1] = [(matched, place + 1, run)]
    return chosen


def naive_trie(branches):
    """path -> (agreement, position, score), the first branch first."""
    nodes = {}
    for matched, start, run in branches:
        score = 1.0
        for step in range(len(run)):
            path = tuple(run[: step + 1])
            nodes.setdefault(path, (matched + step, start + step, score * trust(matched + step)))
            score = nodes[path][2]
    return nodes


def path_to(found, node):
    path = []
    while node >= 0:
        path.insert(0, int(found.tokens[node]))
        node = found.parents[node]
    return tuple(path)


@given(texts, afters, st.integers(1, 3), st.integers(0, 4), st.integers(1, 3), st.integers(1, 5))
@settings(deadline=None, max_examples=200)
def test_copy_index_takes_the_longest_matches(  # noqa: PLR0913
    text, after, min_match, more, branches, length
):
    options = {
        "max_match": min_match + more,
        "min_match": min_match,
        "branches": branches,
        "length": length,
    }
    index, limit = feed(CopyIndex(**options), text), branches * length
    found = index.lookup(limit, TRUST, after)
    expected = naive_trie(naive_branches(text, **options, after=after))
    assert len(found) == len(expected)
    for node in range(len(found)):
        matched, position, score = expected[path_to(found, node)]
        assert (found.match_lengths[node], found.positions[node]) == (matched, position)
        assert found.scores[node] == pytest.approx(score)


@given(texts, st.integers(0, 20))
@settings(deadline=None, max_examples=60)
def test_limit_keeps_the_best_copied_nodes(text, limit):
    index = feed(CopyIndex(), text)
    whole, cut = index.lookup(20, TRUST), index.lookup(limit, TRUST)
    assert all(np.diff(whole.scores) <= 0)
    assert all(parent < node for node, parent in enumerate(whole.parents))
    for field in FIELDS:
        assert np.array_equal(getattr(whole, field)[:limit], getattr(cut, field))


def test_longer_continuation_replaces_its_prefix():
    found = feed(CopyIndex(length=4), [5, 6, 7, 8, 9, BORDER, 5, 6, 7, BORDER, 5, 6]).lookup(
        9, TRUST
    )
    assert found.tokens.tolist() == [7, 8, 9]
    assert found.positions.tolist() == [2, 3, 4]


def naive_counts(text, longest):
    """context -> token -> [count, latest place]."""
    counts = defaultdict(dict)
    for at, token in enumerate(text):
        for n in range(1, longest + 1):
            context = tuple(text[at - n : at])
            if at < n or BORDER in context or token == BORDER:
                continue
            entry = counts[context].setdefault(token, [0, at])
            entry[:] = [entry[0] + 1, at]
    return counts


def naive_chain(text, longest, length, after=()):
    """(token, context length, count, total, position) per step."""
    counts, chain = naive_counts(text, longest), []
    text = [*text, *after]
    while len(chain) < length:
        ends = [tuple(text[-n:]) for n in range(min(longest, len(text)), 0, -1)]
        known = [end for end in ends if end in counts]
        if not known:
            break
        seen = counts[known[0]]
        token = max(seen, key=lambda t: (seen[t][0], seen[t][1]))
        total = sum(count for count, _ in seen.values())
        chain.append((token, len(known[0]), seen[token][0], total, seen[token][1]))
        text.append(token)
    return chain


@given(texts, afters, st.integers(2, 5), st.integers(1, 6), st.integers(0, 7))
@settings(deadline=None, max_examples=200)
def test_counts_use_the_longest_known_context(text, after, order, length, limit):
    found = feed(NgramCounts(order=order, length=length), text).lookup(limit, TRUST, after)
    chain = naive_chain(text, order - 1, min(length, limit), after)
    columns = (found.tokens, found.match_lengths, found.counts, found.totals, found.positions)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == chain
    assert found.parents.tolist() == list(range(-1, len(chain) - 1))
    assert found.scores == pytest.approx(np.cumprod([trust(n) for _, n, *_ in chain]))


@pytest.mark.parametrize("kind", ALL)
@given(texts, st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_growing_in_chunks_gives_the_same_index(kind, text, step):
    assert is_same(feed(kind(), text).lookup(9, TRUST), feed(kind(), text, step).lookup(9, TRUST))


@pytest.mark.parametrize("kind", ALL)
def test_growing_beyond_the_tables_gives_the_same_index(kind):
    text = np.random.default_rng(0).zipf(1.3, 6000).astype(np.int32) % 50
    whole, grown = kind(), kind()
    whole.extend(text)
    for piece in np.array_split(text, 500):
        grown.extend(piece)
    for token in text[:40]:
        whole.extend([token])
        grown.extend([token])
        assert is_same(whole.lookup(32, TRUST), grown.lookup(32, TRUST))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("text", [[], [1], [BORDER], [BORDER] * 3, [1, BORDER], [1, BORDER, 1]])
def test_text_without_repetition_gives_no_matches(kind, text):
    index = feed(kind(), text)
    assert len(index) == len(text)
    assert len(index.lookup(8, TRUST)) == 0


@pytest.mark.parametrize("kind", ALL)
def test_one_repeated_token_continues_with_itself(kind):
    found = feed(kind(), [7] * 5000).lookup(5, TRUST)
    assert found.tokens.tolist() == [7] * 5


@pytest.mark.parametrize("kind", ALL)
def test_negative_tokens_are_refused(kind):
    index = feed(kind(), [4, BORDER, 6])
    with pytest.raises(InputError, match="token -5 is negative"):
        index.extend(np.array([1, -5], dtype=np.int32))
