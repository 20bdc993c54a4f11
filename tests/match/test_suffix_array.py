"""Datastores against versions that look at every place of every document."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.errors import InputError
from graft.match import store_build
from graft.match.continuations import COUNT, PARENT, TOKEN, Continuations
from graft.match.rest import CHOICES, RestIndex
from graft.match.store_build import StoreWriter, begin_store
from graft.match.store_files import (
    Manifest,
    Shard,
    ShardArrays,
    is_store,
    read_manifest,
    with_shards,
    writing,
)
from graft.match.store_warm_up import warm_up
from graft.match.suffix_array import (
    MAX_MATCH,
    MIN_MATCH,
    MIN_PLACES,
    RELIABLE_MATCH,
    Store,
    StoreIndex,
    open_store,
)
from graft.match.suffix_sort import DEPTH, suffix_array

TRUST = np.linspace(0.0, 0.95, 17)
SMALL, WIDE = 4, 100_000  # vocabularies: few tokens, so that they repeat; ids of four bytes

tokens = st.integers(0, SMALL - 1)
documents = st.lists(st.lists(tokens, min_size=1, max_size=30), min_size=1, max_size=8)
ends = st.lists(tokens, min_size=1, max_size=20)


def made(documents, vocabulary=SMALL, shard=None):
    """A store of token lists in memory, `shard` documents in each of its shards."""
    step = shard or len(documents)
    empty = Manifest("tok", "m", vocabulary)
    shards, arrays = [], []
    for first in range(0, len(documents), step):
        some = documents[first : first + step]
        text = np.array([t for each in some for t in [*each, vocabulary]], empty.dtype)
        suffixes = suffix_array(text, vocabulary, threads=1)
        for array in (text, suffixes):
            array.flags.writeable = False  # as mapped files are
        shards.append(Shard(str(first), len(text), len(some), {}))
        arrays.append(ShardArrays(text, suffixes))
    return Store(with_shards(empty, *shards), arrays)


def write(folder, documents, vocabulary=SMALL, shard=None):
    """The same on disk."""
    step = shard or len(documents)
    with writing(folder):
        writer = StoreWriter(folder, begin_store(folder, Manifest("tok", "m", vocabulary)))
        for first in range(0, len(documents), step):
            some = [np.array(each, np.uint32) for each in documents[first : first + step]]
            names = [f"document {first + i}" for i in range(len(some))]
            writer.add(names, lambda _, some=some: some, lambda _: None)
        writer.finish()
    return open_store(folder, "tok")


def places(documents, end):
    """All places of the end that have a continuation."""
    found = []
    for document in documents:
        for at in range(len(document) - len(end)):
            if document[at : at + len(end)] == end:
                found.append(document[at + len(end) :])
    return found


def well_known(documents, end):
    """The longest match, shortened where it is neither long nor frequent."""
    best = longest(documents, end)
    for length in range(best[0] - 1, MIN_MATCH - 1, -1):
        if best[0] >= RELIABLE_MATCH or len(best[1]) >= MIN_PLACES:
            break
        found = places(documents, end[-length:])
        best = (length, found) if len(found) > len(best[1]) else best
    return best


def longest(documents, end):
    for length in range(min(MAX_MATCH, len(end)), MIN_MATCH - 1, -1):
        if found := places(documents, end[-length:]):
            return length, found
    return 0, []


def counted(followers, length):
    return Counter(tuple(f[:n]) for f in followers for n in range(1, min(length, len(f)) + 1))


def nodes_of(trie):
    used, nodes, _ = trie.arrays
    return nodes[: used[0]]


def paths_of(matches):
    paths = []
    for token, parent in zip(matches.tokens.tolist(), matches.parents.tolist(), strict=True):
        assert parent < len(paths)
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(1, 40))
def test_suffixes_are_sorted_by_their_first_tokens_then_by_position(text, repeats):
    text = text * repeats if len(text) < 10 else text
    border = max(text)
    beyond = [border] * DEPTH
    order = sorted(
        (at for at in range(len(text)) if text[at] != border),
        key=lambda at: ((text[at : at + DEPTH] + beyond)[:DEPTH], at),
    )
    for dtype in (np.uint16, np.uint32):
        assert suffix_array(np.array(text, dtype), border, threads=1).tolist() == order


@given(documents, ends, st.sampled_from([SMALL, WIDE]))
def test_search_finds_the_longest_end_with_a_continuation(texts, end, vocabulary):
    scale = vocabulary // SMALL
    texts = [[token * scale for token in text] for text in texts]
    end = [token * scale for token in end]
    store = made(texts, vocabulary)
    hits = store.search(np.array(end[-MAX_MATCH:], np.int32))
    length, followers = longest(texts, end)
    assert (hits.length, hits.count) == (length, len(followers))
    assert store.manifest.dtype.itemsize == (2 if vocabulary == SMALL else 4)


@given(documents, ends, st.integers(1, 8))
def test_rare_short_match_is_shortened_to_a_frequent_one(texts, end, shard):
    for store in (made(texts), made(texts, shard=shard)):
        hits = store.search_reliable(np.array(end[-MAX_MATCH:], np.int32))
        length, followers = well_known(texts, end)
        assert (hits.length, hits.count) == (length, len(followers))


def test_reliable_match_needs_one_place_only():
    """And a short one keeps its length where shorter ones have no more places."""
    often = [[5, 6, 9]] * MIN_PLACES
    for length, used in ((RELIABLE_MATCH, RELIABLE_MATCH), (RELIABLE_MATCH - 1, 2), (2, 2)):
        once = list(range(20, 18 + length)) + [5, 6]
        store = made([[*once, 3], *often], vocabulary=99)
        assert store.search_reliable(np.array(once, np.int32)).length == used
        alone = made([[*once, 3]], vocabulary=99)
        assert alone.search_reliable(np.array(once, np.int32)).length == length


@given(documents, ends, st.integers(1, 6))
def test_continuations_are_counted_and_never_cross_documents(texts, end, length):
    index = StoreIndex(made(texts), length=length)
    index.extend(np.array(end, np.int32))
    found = index.lookup(10_000, np.ones(2))
    matched, followers = well_known(texts, end)
    counts = counted(followers, length)
    paths = paths_of(found)
    assert dict(zip(paths, found.counts.tolist(), strict=True)) == {
        path: counts[path] for path in paths
    }
    scores = {(): 1.0}
    for path, count in sorted(counts.items(), key=lambda item: len(item[0])):
        siblings = sum(c for p, c in counts.items() if p[:-1] == path[:-1] and len(p) == len(path))
        scores[path] = scores[path[:-1]] * count / (siblings + 0.05)
    assert {p for p, score in scores.items() if score >= 0.011 and p} <= set(paths)
    assert found.scores == pytest.approx([scores[path] for path in paths], rel=1e-5)
    assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
    assert found.match_lengths.tolist() == [matched + len(path) - 1 for path in paths]
    assert set(found.positions.tolist()) <= {-1}


@given(documents, ends, st.integers(1, 3))
def test_several_shards_give_the_matches_of_one(texts, end, shard):
    one, several = made(texts), made(texts, shard=shard)
    assert len(several.manifest.shards) == -(-len(texts) // shard)
    found = []
    for store in (one, several):
        index = store.index()
        index.extend(np.array(end, np.int32))
        matches = index.lookup(10_000, TRUST)
        found.append(
            dict(
                zip(
                    paths_of(matches), zip(matches.counts, matches.totals, strict=True), strict=True
                )
            )
        )
    assert found[0] == found[1]


@given(st.lists(st.integers(1, 60), min_size=2, max_size=12), st.integers(3, 40), st.integers(1, 4))
def test_sample_has_every_continuation_in_proportion(sizes, sample, shard):
    texts = [[0, 0, 1 + kind] for kind, size in enumerate(sizes) for _ in range(size)]
    store = made(texts, vocabulary=99, shard=-(-len(texts) // shard))
    index = StoreIndex(store, sample=sample, length=2)
    index.extend(np.zeros(2, np.int32))
    index.lookup(1, TRUST)
    total, taken = sum(sizes), min(sum(sizes), sample)
    nodes = nodes_of(index._trie)[1:]
    met = dict(zip(nodes[:, 0].tolist(), nodes[:, 2].tolist(), strict=True))
    assert sum(met.values()) == taken
    wrong_by_less_than = 1 if shard == 1 else len(store.manifest.shards) + 1
    for kind, size in enumerate(sizes):
        assert abs(met.get(1 + kind, 0) - size * taken / total) < wrong_by_less_than


@given(documents, ends)
def test_rest_keeps_the_most_frequent_within_its_limit_of_distinct_tokens(texts, end):
    index = RestIndex(made(texts))
    index.extend(np.array(end, np.int32))
    found = index.lookup(64, TRUST)
    length, followers = longest(texts, end)
    counts = counted(followers, 10)
    paths = paths_of(found)
    assert sum(len(set(path)) for path in paths) <= 64
    assert [counts[path] for path in paths] == found.counts.tolist()
    assert found.counts.tolist() == sorted(found.counts.tolist(), reverse=True)
    assert found.scores == pytest.approx([counts[p] / len(followers) for p in paths])
    assert bool(paths) == bool(length)
    if sum(len(set(path)) for path in counts) <= 64:
        assert set(paths) == set(counts)


def rest_choices(nodes):
    """REST's choice from a counted trie, step by step: paths, most frequent first."""
    paths = [()]
    for node in nodes[1:]:
        paths.append((*paths[node[PARENT]], int(node[TOKEN])))
    ranked = (np.argsort(-nodes[1:, COUNT], kind="stable")[:CHOICES] + 1).tolist()
    distinct = {node: len(set(paths[node])) for node in ranked}
    for node in sorted(ranked, key=lambda each: (distinct[each], len(paths[each])))[::-1]:
        if sum(distinct.values()) > CHOICES:
            del distinct[node]
    return [paths[node] for node in distinct]


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=8, max_size=30), min_size=1, max_size=12),
    st.lists(st.integers(0, 5), min_size=2, max_size=3),
    st.integers(1, 64),
)
def test_rest_equals_its_plain_description(texts, end, limit):
    index = RestIndex(made(texts, vocabulary=6))
    for _ in range(2):  # the second time with a used trie
        index.extend(np.array(end, np.int32))
        paths = paths_of(index.lookup(limit, TRUST))
        assert paths == rest_choices(nodes_of(index._trie))[:limit]


def test_rest_has_the_tree_sizes_of_the_original():
    """Nodes and depth by how many continuations of 10 distinct tokens there are."""
    sizes = ((1, 10, 10), (2, 15, 8), (3, 18, 6), (5, 22, 5), (10, 26, 4))
    for branches, nodes, depth in sizes:
        texts = [[0, 0, *range(1 + 10 * b, 11 + 10 * b)] for b in range(branches)]
        index = RestIndex(made(texts, vocabulary=999))
        index.extend(np.zeros(2, np.int32))
        paths = paths_of(index.lookup(64, TRUST))
        assert (len(paths), max(map(len, paths))) == (nodes, depth)


@pytest.mark.parametrize("kind", [StoreIndex, RestIndex])
@given(documents, ends, st.lists(st.integers(0, SMALL), max_size=20))
def test_lookup_with_assumed_tokens_equals_lookup_of_the_extended_text(kind, texts, end, more):
    """Ids beyond the vocabulary among them."""
    store = made(texts)
    ahead, there = kind(store), kind(store)
    for index in (ahead, there):
        index.extend(np.array(end, np.int32))
    before = paths_of(ahead.lookup(64, TRUST))
    found = ahead.lookup(64, TRUST, more)
    there.extend(np.array(more, np.int32))
    expected = there.lookup(64, TRUST)
    assert paths_of(found) == paths_of(expected)
    assert found.counts.tolist() == expected.counts.tolist()
    assert found.match_lengths.tolist() == expected.match_lengths.tolist()
    assert paths_of(ahead.lookup(64, TRUST)) == before  # nothing of it is kept
    known = more[len(more) - more[::-1].index(SMALL) :] if SMALL in more else [*end, *more]
    length, followers = (well_known if kind is StoreIndex else longest)(texts, known)
    assert set(paths_of(found)) <= counted(followers, 16).keys()
    assert bool(len(found)) == bool(length)
    assert all(match >= length for match in found.match_lengths)


@given(st.lists(st.tuples(documents, ends), min_size=2, max_size=4))
def test_cleared_trie_equals_a_new_one(searches):
    """Cleared by what was used, not slot by slot."""
    trie = Continuations(50, 4)
    for texts, end in searches:
        fresh, store = Continuations(50, 4), made(texts)
        hits = store.search(np.array(end[-MAX_MATCH:], np.int32))
        for each in (trie, fresh):
            store.count(hits, each, sample=50)
        np.testing.assert_array_equal(nodes_of(trie), nodes_of(fresh))
        np.testing.assert_array_equal(trie.arrays[2], fresh.arrays[2])


def test_running_text_restarts_at_borders_and_at_unknown_ids():
    store = made([[1, 2, 3, 0], [2, 1, 1]])
    index = store.index()
    for text, border, follows in (
        ([1, 2], False, [3, 0]),
        ([3], True, []),
        ([1, 2], False, [3, 0]),
        ([SMALL, 2], False, []),
    ):
        index.extend(np.array(text, np.int32))
        if border:
            index.border()
        assert index.lookup(4, np.ones(2)).tokens.tolist() == follows


def test_empty_store_gives_no_matches(tmp_path):
    folder = tmp_path / "store"
    with writing(folder):
        StoreWriter(folder, begin_store(folder, Manifest("tok", "m", 9))).finish()
    store = open_store(folder, "tok")
    warm_up(9)
    index = store.index()
    index.extend(np.array([1, 2, 3], np.int32))
    assert len(index.lookup(4, TRUST)) == 0


def test_duplicates_are_skipped_and_long_texts_are_cut_at_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(store_build, "PART", 12)
    folder, seen = tmp_path / "store", []

    def encode(texts):
        seen.extend(texts)
        return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]

    with writing(folder):
        writer = StoreWriter(folder, begin_store(folder, Manifest("tok", "m", 256)))
        writer.add(
            ["one\ntwo\nthree\nfour", "same", "same", " \n", "x" * 30], encode, lambda _: None
        )
        writer.add(["same", "new"], encode, lambda _: None)
    assert seen == ["one\ntwo\n", "three\nfour", "same", "x" * 12, "x" * 6, "new"]
    assert (writer.progress.documents, writer.progress.duplicates) == (6, 3)
    assert read_manifest(folder).documents == 6


def test_merging_keeps_matches_and_deletes_old_files(tmp_path):
    texts = [[1, 2, 3, at % 4] for at in range(10)]
    folder = tmp_path / "store"
    before = write(folder, texts, shard=1)
    with writing(folder):
        writer = StoreWriter(folder, read_manifest(folder), max_tokens=25)
        assert writer.merge(beyond=10) == 0
        assert writer.merge() == 8
        assert [shard.tokens for shard in writer.manifest.shards] == [25, 25]
    after = open_store(folder, "tok")
    assert {file.suffix for file in folder.iterdir()} == {
        *("", ".json", ".tokens", ".suffixes", ".documents")
    }
    assert len(list(folder.glob("*.tokens"))) == 2
    pattern = np.array([1, 2, 3], np.int32)
    # The one opened before goes on with the files it has mapped.
    assert before.search(pattern).count == after.search(pattern).count == 10


def test_interrupted_merge_leaves_the_store_unchanged(tmp_path, monkeypatch):
    folder = tmp_path / "store"
    write(folder, [[1, 2, 3], [1, 2, 0]], shard=1)
    before = read_manifest(folder)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, writing(folder):
        patch.setattr(store_build, "write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            StoreWriter(folder, before).merge()
    assert len(list(folder.glob("*.tokens"))) == 3
    assert read_manifest(folder) == before
    assert open_store(folder, "tok").search(np.array([1, 2], np.int32)).count == 2
    with writing(folder):
        assert len(list(folder.glob("*.tokens"))) == 2


def test_second_writer_is_refused(tmp_path):
    folder = tmp_path / "store"
    with (
        writing(folder),
        pytest.raises(InputError, match="another process is writing"),
        writing(folder),
    ):
        pass


def test_next_writer_deletes_the_files_of_a_killed_one(tmp_path):
    folder = tmp_path / "store"
    write(folder, [[1, 2, 3]])
    left = [folder / "0123.tokens", folder / ".tmp-0123.suffixes-x"]
    for file in left:
        file.write_bytes(b"half")
    with writing(folder):
        pass
    assert not any(file.exists() for file in left)
    assert isinstance(open_store(folder, "tok"), Store)


def test_folder_with_other_files_is_refused(tmp_path):
    folder = tmp_path
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="other files"), writing(folder):
        begin_store(folder, Manifest("tok", "m", 9))
    assert not is_store(folder)
