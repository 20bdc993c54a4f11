"""The suffix automaton against counting by hand over the whole text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.errors import InputError
from graft.match.matches import Matches
from graft.match.suffix_automaton import LAZY_TOKENS, LISTED_EDGES, UNSEEN, SuffixAutomaton
from graft.match.suffix_states import LENGTH, LINK

FIELDS = ("tokens", "parents", "match_lengths", "counts", "totals", "scores", "positions")

BORDER = -1
TRUST = np.array([0.0, 0.3, 0.5, 0.7, 0.8, 0.9])

texts = st.lists(st.integers(-1, 3), max_size=40)  # -1 is a border


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    SuffixAutomaton.warm_up()


def indexed(text: list[int], **options) -> SuffixAutomaton:
    index = SuffixAutomaton(**options)
    for piece in pieces_of(text):
        if piece == [BORDER]:
            index.border()
        else:
            index.extend(np.array(piece, dtype=np.int32))
    return index


def pieces_of(text: list[int]) -> list[list[int]]:
    pieces = [[]]
    for token in text:
        if token == BORDER:
            pieces += [[BORDER], []]
        else:
            pieces[-1].append(token)
    return pieces


def last_document(text: list[int]) -> list[int]:
    return pieces_of(text)[-1]


def places(text: list[int], context: list[int]) -> list[int]:
    """Where `context` ends in `text`; borders are in no context."""
    n = len(context)
    return [end for end in range(n - 1, len(text)) if text[end - n + 1 : end + 1] == context]


def followers(text: list[int], context: list[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for end in places(text, context):
        if end + 1 < len(text) and text[end + 1] != BORDER:
            counts[text[end + 1]] = counts.get(text[end + 1], 0) + 1
    return counts


def longest_match(text: list[int], after: list[int] | tuple = ()) -> int:
    document = [*last_document(text), *after]
    own = 0 if after else 1
    return max(
        (n for n in range(1, len(document) + 1) if len(places(text, document[-n:])) > own),
        default=0,
    )


def match_length(index: SuffixAutomaton) -> int:
    """Of the longest end of the text that occurred before: the newest state's suffix link."""
    used, states, _ = index.arrays
    return states[states[used[2], LINK], LENGTH]


def path_to(matches: Matches, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.insert(0, int(matches.tokens[node]))
        node = matches.parents[node]
    return path


def contexts_of(text: list[int], whole: list[int], matched: int, limit: int) -> list[int]:
    """Lengths of the contexts to ask: the match, then each shorter end seen at more places."""
    lengths, before = [], None
    for n in range(matched, 0, -1):
        ends = places(text, whole[-n:])
        if ends != before:
            lengths.append(n)
        before = ends
    return lengths[:limit]


def naive_children(text, whole, matched, score, backoff) -> dict[int, tuple[int, int, int, float]]:
    """What the automaton should propose after `whole`: token -> (matched, count, total, score)."""
    children: dict[int, tuple[int, int, int, float]] = {}
    for n in contexts_of(text, whole, matched, backoff):
        counts = followers(text, whole[-n:])
        total = sum(counts.values())
        share = score * TRUST[min(n, len(TRUST) - 1)] / (total + UNSEEN)
        for token, count in counts.items():
            children.setdefault(token, (n, count, total, share * count))
        score -= share * total
    return children


@given(texts)
@settings(deadline=None, max_examples=150)
def test_match_is_the_longest_end_that_occurred_before(text):
    assert match_length(indexed(text)) == longest_match(text)


@given(texts, st.lists(st.integers(0, 3), max_size=3), st.integers(1, 5))
@settings(deadline=None, max_examples=150)
def test_trie_equals_counting(text, after, backoff):
    index = indexed(text, min_score=0.0, max_depth=3, max_backoff=backoff)
    limit = 4 + 16 + 64
    found = index.lookup(limit, TRUST, after)
    nodes = {tuple(path_to(found, i)): i for i in range(len(found))}
    assert len(nodes) == len(found)
    expected = {}
    level = {(): (longest_match(text, after), 1.0)}
    for _ in range(3):
        deeper = {}
        for path, (matched, score) in level.items():
            whole = [*last_document(text), *after, *path]
            for token, child in naive_children(text, whole, matched, score, backoff).items():
                expected[(*path, token)] = child
                deeper[(*path, token)] = (child[0] + 1, child[3])
        level = deeper
    assert nodes.keys() == expected.keys()
    for path, (matched, count, total, score) in expected.items():
        node = nodes[path]
        assert found.match_lengths[node] == matched
        assert (found.counts[node], found.totals[node]) == (count, total)
        assert found.scores[node] == pytest.approx(score, rel=1e-5)


@given(texts, st.integers(0, 12))
@settings(deadline=None, max_examples=100)
def test_every_branch_occurs_in_the_text_after_the_match(text, limit):
    found = indexed(text).lookup(limit, TRUST)
    assert len(found) <= limit
    for node in range(len(found)):
        whole = last_document(text) + path_to(found, node)
        seen = whole[-found.match_lengths[node] - 1 :]
        assert BORDER not in seen
        assert places(text, seen)[-1] == found.positions[node]


@given(texts)
@settings(deadline=None, max_examples=100)
def test_parents_come_first_scores_descend_and_siblings_differ(text):
    found = indexed(text, min_score=0.001).lookup(64, TRUST)
    assert all(parent < node for node, parent in enumerate(found.parents))
    assert all(np.diff(found.scores) <= 0)
    siblings = list(zip(found.parents, found.tokens, strict=True))
    assert len(set(siblings)) == len(siblings)


@given(texts, texts, st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_growing_in_chunks_gives_the_same_index(text, more, step):
    whole = indexed(text + more)
    grown = indexed(text)
    grown.reserve(5000)
    for piece in pieces_of(more):
        if piece == [BORDER]:
            grown.border()
            continue
        for start in range(0, len(piece), step):
            grown.extend(np.array(piece[start : start + step], dtype=np.int64))
            grown.lookup(8, TRUST)
    left, right = whole.lookup(32, TRUST), grown.lookup(32, TRUST)
    for field in FIELDS:
        assert np.array_equal(getattr(left, field), getattr(right, field))


def test_growing_beyond_the_arrays_gives_the_same_index():
    rng = np.random.default_rng(0)
    text = rng.zipf(1.3, 9000).astype(np.int32) % 300
    whole, grown = SuffixAutomaton(), SuffixAutomaton()
    whole.extend(text)
    for piece in np.array_split(text, 700):
        grown.extend(piece)
    for token in text[:50]:
        whole.extend([token])
        grown.extend([token])
        left, right = whole.lookup(32, TRUST), grown.lookup(32, TRUST)
        for field in FIELDS:
            assert np.array_equal(getattr(left, field), getattr(right, field))


@pytest.mark.parametrize(
    "text", [[], [1], [1, 2, 3], [BORDER], [BORDER] * 3, [1, BORDER], [1, BORDER, 2]]
)
def test_text_without_repetition_gives_no_matches(text):
    index = indexed(text)
    assert len(index) == len(text)
    assert match_length(index) == 0
    assert len(index.lookup(8, TRUST)) == 0


def test_longer_context_comes_first_and_shorter_ones_fill_up():
    found = indexed([1, 2, 3, BORDER, 9, 2, 4, BORDER, 1, 2]).lookup(2, TRUST)
    assert found.tokens.tolist() == [3, 4]
    assert found.match_lengths.tolist() == [2, 1]
    assert found.totals.tolist() == [1, 2]
    first = TRUST[2] / (1 + UNSEEN)
    assert found.scores == pytest.approx([first, (1 - first) * TRUST[1] / (2 + UNSEEN)])


def test_one_repeated_token_continues_to_the_full_depth():
    index = SuffixAutomaton(max_depth=20, min_score=0.0)
    index.extend(np.full(5000, 7, dtype=np.int32))
    assert match_length(index) == 4999
    found = index.lookup(64, np.ones(1))
    assert found.tokens.tolist() == [7] * 20
    assert found.parents.tolist() == list(range(-1, 19))


def test_state_with_many_continuations_lists_its_oldest():
    text = [token for other in range(2 * LISTED_EDGES) for token in (0, 1 + other)]
    found = indexed([*text, 0], min_score=0.0, max_depth=1).lookup(100, TRUST)
    assert sorted(found.tokens) == list(range(1, LISTED_EDGES + 1))
    assert set(found.totals) == {2 * LISTED_EDGES}


@pytest.mark.parametrize("count", [1, LAZY_TOKENS, LAZY_TOKENS + 1])
def test_every_query_inserts_pending_tokens(count):
    """Few are only noted when they come."""
    text = [7, *range(1, count), 7]
    for ask in (lambda index: index.arrays, lambda index: index.lookup(4, TRUST), lambda _: None):
        index = indexed([7])
        index.extend(text[1:])
        ask(index)
        assert match_length(index) == longest_match(text) == 1
        found, expected = index.lookup(4, TRUST), indexed(text).lookup(4, TRUST)
        assert found.tokens.tolist() == expected.tokens.tolist()
    index = indexed([7])
    index.extend(text[1:])
    index.border()
    assert match_length(index) == 0


def test_negative_tokens_are_refused():
    index = indexed([4, BORDER, 6])
    for tokens in ([1, -5], np.array([1, -5], dtype=np.int32)):
        with pytest.raises(InputError, match="token -5 is negative"):
            index.extend(tokens)
    assert len(index) == 3
