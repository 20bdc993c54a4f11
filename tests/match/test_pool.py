"""Pools: the longest match, eviction of the oldest, isolation of keys, files that survive kills."""

import os
from collections import Counter

import pytest
from daily import daily
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.index.pool import TEXT, kill
from graft.draft.copies.calibration import PRIOR
from graft.errors import InputError
from graft.match import pool_files
from graft.match.pool import FIRST_SEGMENT, IN_POOL, MIN_TOKENS, SHARE, PoolOptions, Pools
from graft.match.pool_segments import LONG, MAX_MATCH, MIN_PLACES, SHORT

texts = st.lists(st.lists(st.integers(0, 2), max_size=24), max_size=8)


def lookup(pools, end, salt=""):
    index = pools.of(salt).index()
    index.extend(end)
    return index.lookup(16, PRIOR)


def rows(matches):
    return matches.fields[:, : len(matches)].tolist(), matches.scores.tolist()


def kept(pools, salt=""):
    return [text.tolist() for text in pools.of(salt).texts()]


def expected(added, end):
    """The match length and the counts of next tokens, by comparing every place."""
    places = []
    for text in added:
        for at in range(1, len(text)):
            run = 0
            while run < min(at, len(end), MAX_MATCH) and text[at - 1 - run] == end[-1 - run]:
                run += 1
            places.append((run, text[at]))
    longest = [place for place in places if place[0] >= LONG]
    found = longest or [place for place in places if place[0] >= SHORT]
    for length in range(MAX_MATCH, SHORT - 1, -1):
        shared = [token for run, token in found if run >= length]
        enough = len(shared) >= MIN_PLACES or length == SHORT
        if shared and (enough or length >= LONG):
            return length, Counter(shared)
    return 0, Counter()


@given(texts, st.lists(st.integers(0, 2), min_size=1, max_size=20))
def test_finds_what_followed_the_longest_match(added, end):
    pools = Pools()
    for text in added:
        pools.add("", text)
    if sum(map(len, added)) > 60:  # a chain is not examined to its end
        return
    length, counts = expected([text for text in added if len(text) > SHORT], end)
    found = lookup(pools, end)
    first = {
        token: (count, total, match)
        for token, parent, match, count, total, _ in zip(*rows(found)[0], strict=True)
        if parent < 0
    }
    assert first == {
        token: (count, counts.total(), length) for token, count in counts.items() if token in first
    }
    if counts:
        assert counts.most_common(1)[0][1] in [count for count, _, _ in first.values()]
    assert set(found.positions.tolist()) <= {IN_POOL}


def test_draft_tokens_that_are_assumed_are_not_kept():
    pools = Pools()
    pools.add("", [1, 2, 3, 4, 5, 6])
    index = pools.of("").index()
    index.extend([9])
    assert index.lookup(8, PRIOR, after=[3]).tokens.tolist() == [4, 5, 6]
    assert not len(index.lookup(8, PRIOR))


@given(texts, texts, st.lists(st.integers(0, 2), min_size=1, max_size=20))
def test_keys_with_the_same_texts_learn_nothing_of_each_other(mine, others, end):
    alone, together = Pools(), Pools()
    for text in mine:
        alone.add("mine", text)
        together.add("mine", text)
        together.add("other", text)
    for text in others:
        together.add("other", text)
    assert rows(lookup(alone, end, "mine")) == rows(lookup(together, end, "mine"))
    assert not len(lookup(together, end, "third"))
    assert kept(alone, "mine") == kept(together, "mine")


def numbered(number, length=20):
    return [number] * 4 + list(range(number, number + length))


def test_oldest_texts_are_dropped_first():
    pools = Pools(PoolOptions(max_tokens=SHARE * FIRST_SEGMENT))
    for number in range(4000):
        pools.add("", numbered(number))
        assert pools.capacity <= SHARE * FIRST_SEGMENT
    found = kept(pools)
    assert found == [numbered(number) for number in range(4000 - len(found), 4000)]
    assert sum(len(text) + 1 for text in found) > (SHARE - 1.1) * FIRST_SEGMENT
    assert not len(lookup(pools, [0] * 4))
    assert lookup(pools, found[-1][:10]).tokens[0] == found[-1][10]


def test_the_key_used_longest_ago_makes_space():
    pools = Pools(PoolOptions(max_tokens=SHARE * FIRST_SEGMENT))
    for key in range(2 * SHARE):
        pools.add(str(key), numbered(key))
        pools.add("0", numbered(key))
    assert [bool(kept(pools, str(key))) for key in (0, 1, 2 * SHARE - 1)] == [True, False, True]


def test_a_text_longer_than_a_segment_keeps_its_end():
    pools = Pools(PoolOptions(max_tokens=MIN_TOKENS))
    pools.add("", range(1000))
    assert kept(pools) == [list(range(1000 - MIN_TOKENS // SHARE + 1, 1000))]
    with pytest.raises(InputError, match="at least"):
        PoolOptions(max_tokens=MIN_TOKENS - 1)


def test_texts_stay_on_disk(tmp_path):
    options = PoolOptions(tmp_path, max_tokens=SHARE * FIRST_SEGMENT)
    pools = Pools(options, "tokenizer")
    for number in range(2000):
        pools.add(str(number % 2), numbered(number))
    before = kept(pools, "0"), kept(pools, "1")
    pools.close()
    pools = Pools(options, "tokenizer")
    assert (kept(pools, "0"), kept(pools, "1")) == before
    pools.add("0", numbered(5000))
    pools.close()
    assert kept(Pools(options, "tokenizer"), "0")[-1] == numbered(5000)
    assert not kept(Pools(options, "another"), "0")


def test_many_short_sessions_fill_the_same_file(tmp_path):
    for number in range(20):
        pools = Pools(PoolOptions(tmp_path))
        pools.add("", numbered(number))
        pools.close()
    assert kept(Pools(PoolOptions(tmp_path))) == [numbered(number) for number in range(20)]
    assert len(list(tmp_path.rglob("*.tokens"))) == 1


def test_a_file_cut_or_changed_anywhere_keeps_the_texts_before(tmp_path):
    pools = Pools(PoolOptions(tmp_path))
    for number in range(3):
        pools.add("", numbered(number, 2))
    pools.close()
    [file] = tmp_path.rglob("*.tokens")
    whole = file.read_bytes()
    record = (len(whole) - len(pool_files.MAGIC)) // 3
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        left = max(0, size - len(pool_files.MAGIC)) // record
        assert len(pool_files.read_texts(file)[0]) == left
        changed = bytearray(whole)
        changed[size] ^= 1
        file.write_bytes(changed)
        left = (size - len(pool_files.MAGIC)) // record if size >= len(pool_files.MAGIC) else 0
        assert len(pool_files.read_texts(file)[0]) == left
    file.write_bytes(whole[:-1])
    pools = Pools(PoolOptions(tmp_path))  # cuts the end off, then appends
    pools.add("", numbered(9, 2))
    pools.close()
    texts = kept(Pools(PoolOptions(tmp_path)))
    assert texts == [numbered(number, 2) for number in (0, 1, 9)]


def test_second_process_reads_and_does_not_write(tmp_path, caplog):
    first = Pools(PoolOptions(tmp_path))
    first.add("", numbered(1))
    second = Pools(PoolOptions(tmp_path))
    second.add("", numbered(2))
    assert kept(second) == [numbered(1), numbered(2)]
    assert "only reads" in caplog.text
    first.close()
    assert kept(Pools(PoolOptions(tmp_path))) == [numbered(1)]


def test_many_restarts_drop_nothing(tmp_path):
    options = PoolOptions(tmp_path)
    for start in range(30):
        pools = Pools(options)
        for number in range(100):
            pools.add("", numbered(100 * start + number))
        pools.close()
    assert kept(Pools(options)) == [numbered(number) for number in range(3000)]


def test_full_disk_ends_the_writing_alone(tmp_path, monkeypatch, caplog):
    pools = Pools(PoolOptions(tmp_path))
    pools.add("", numbered(1))
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, content[:10]))
    pools.add("", numbered(2))
    monkeypatch.undo()
    pools.add("", numbered(3))
    assert kept(pools) == [numbered(1), numbered(2), numbered(3)]
    assert caplog.text.count("no longer written") == 1
    pools.close()
    assert kept(Pools(PoolOptions(tmp_path))) == [numbered(1)]


def test_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be kept in"):
        Pools(PoolOptions(tmp_path / "file"))


@pytest.mark.parametrize("times", daily([5, 100], 5))
def test_killed_process_loses_nothing_it_had_added(tmp_path, times):
    """The texts after each kill are consecutive and end with the last one that was reported, or
    with the one after it."""
    for row in kill(PoolOptions(tmp_path, max_tokens=SHARE * FIRST_SEGMENT), times, seed=times):
        assert row["lost"] == 0
        assert row["found"] == row["last"] + 1 - row["first"]
        assert row["last"] - row["reported"] in (0, 1)
        assert row["found"] > min(row["last"], FIRST_SEGMENT // TEXT // 2)
