"""Figures of decode rows, by hand."""

import pytest
from made_up_rows import decode_row as run

from graft.bench.decoding import (
    decode_ratio,
    decode_speed,
    first_difference,
    median_row,
    nodes_per_step,
    prefill_ratio,
    summed,
    tokens_per_step,
    total_ratio,
)


def test_repeats_count_by_the_median_of_each_time():
    seconds = [(1.0, 9.0), (5.0, 2.0), (3.0, 4.0)]
    repeats = [
        run(prefill_seconds=prefill, decode_seconds=decode, total_seconds=prefill + decode)
        for prefill, decode in seconds
    ]
    found = median_row(repeats)
    assert (found.prefill_seconds, found.decode_seconds, found.total_seconds) == (3.0, 4.0, 7.0)


def test_decoding_is_compared_per_token_and_the_total_at_equal_lengths():
    base = run(tokens=11, prefill_seconds=1.0, decode_seconds=2.0, total_seconds=3.0)
    short = run(tokens=6, prefill_seconds=1.0, decode_seconds=0.5, total_seconds=1.5)
    pairs = [(base, short)]
    assert decode_ratio(pairs).mean == pytest.approx(2)  # 0.2 against 0.1 seconds a token
    assert prefill_ratio(pairs).mean == 1
    assert total_ratio(pairs).mean == pytest.approx(3 / (1 + 10 * 0.1))


def test_tokens_of_the_prefill_are_not_decoded():
    early = run(tokens=11, first_tokens=4, decode_seconds=1.4, steps=10)
    assert early.pace == pytest.approx(0.2)
    assert tokens_per_step([early]) == 1
    assert decode_speed([early]) == pytest.approx(5)


def test_an_output_of_one_token_has_no_pace():
    single = run(tokens=1, decode_seconds=0.0, total_seconds=1.0, steps=0)
    assert single.pace is None
    assert decode_ratio([(single, single)]) is None
    assert total_ratio([(single, single)]).mean == 1
    assert tokens_per_step([single]) is None


def test_an_engine_without_prefill_time_is_compared_end_to_end():
    silent = run(prefill_seconds=None, decode_seconds=None, total_seconds=1.5)
    assert decode_ratio([(run(), silent)]) is None
    assert prefill_ratio([(run(), silent)]) is None
    assert total_ratio([(run(), silent)]).mean == pytest.approx(2)


def test_counts_by_source_are_added_up_largest_first():
    counts = [{"output": 1, "prompt": 3}, {"prompt": 4}, None]
    assert list(summed(counts).items()) == [("prompt", 7), ("output", 1)]


def test_nodes_per_step_of_the_rows_that_count_them():
    runs = [run(steps=4, drafted=20), run(steps=6, drafted=5), run(steps=9), run(drafted=0)]
    assert nodes_per_step(runs[:3]) == 2.5
    assert nodes_per_step(runs[2:3]) is None
    assert nodes_per_step(runs[3:]) == 0


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 9, 3], 2),
        ([1, 2], [1, 2, 3], 3),
        ([], [1], 1),
    ],
)
def test_first_difference(one, other, place):
    assert first_difference(one, other) == place
