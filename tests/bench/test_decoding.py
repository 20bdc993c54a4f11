"""Figures of decode rows, by hand."""

import pytest
from made_up_rows import decode_row as run

from graft.bench.decoding import (
    decode_ratio,
    decode_speed,
    drafting,
    first_difference,
    median_row,
    prefill_ratio,
    shares,
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


def test_shares_are_of_all_tokens_largest_first():
    runs = [
        run(tokens=10, accepted_by_source={"output": 1, "prompt": 3}),
        run(tokens=10, accepted_by_source={"prompt": 4, "document": 0}),
    ]
    assert list(shares(runs).items()) == [("prompt", 0.35), ("output", 0.05)]


def test_drafting_is_nodes_per_step_and_acceptance_by_source():
    runs = [
        run(
            steps=4,
            drafted=20,
            drafted_by_source={"output": 4, "prompt": 16},
            accepted_by_source={"prompt": 8},
        ),
        run(
            steps=6,
            drafted=5,
            drafted_by_source={"output": 3, "both": 2},
            accepted_by_source={"output": 1, "both": 2},
        ),
    ]
    found = drafting(runs)
    assert found.nodes_per_step == 2.5
    assert (found.all.drafted, found.all.accepted, found.all.rate) == (25, 11, 0.44)
    assert {name: each.rate for name, each in found.by_source.items()} == {
        "prompt": 0.5, "output": 1 / 7, "both": 1,
    }  # fmt: skip
    assert list(found.by_source) == ["prompt", "output", "both"]


def test_drafting_without_nodes_or_sources():
    assert drafting([run(accepted_by_source={"lookup": 2})]) is None
    assert drafting([run(steps=0, drafted=0)]) is None
    old = drafting([run(steps=10, drafted=30, accepted_by_source={"prompt": 6})])
    assert (old.nodes_per_step, old.all.rate, old.by_source) == (3, 0.2, {})
    nothing = drafting([run(steps=10, drafted=0, drafted_by_source={})])
    assert (nothing.nodes_per_step, nothing.all.rate) == (0, None)


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
