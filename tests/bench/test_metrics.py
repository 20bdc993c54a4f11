import math

import numpy as np
import pytest
from made_up_answers import answer
from scipy import stats

from graft.bench.metrics import (
    as_run,
    decode_ratio,
    decode_speed,
    drafting,
    first_difference,
    paired_ratio,
    prefill_ratio,
    shares,
    tokens_per_step,
    total_ratio,
)


def run(**changes):
    return as_run([answer(**changes)])


def test_ratio_of_two_pairs_by_hand():
    # ratios 1 and 4: mean of the logs ln 2, their deviation sqrt(2) ln 2, t(0.975, 1) = 12.7062
    ratio = paired_ratio([3.0, 8.0], [3.0, 2.0])
    half = 12.7062 * math.sqrt(2) * math.log(2) / math.sqrt(2)
    assert ratio.mean == pytest.approx(2)
    assert math.log(ratio.low) == pytest.approx(math.log(2) - half, rel=1e-4)
    assert math.log(ratio.high) == pytest.approx(math.log(2) + half, rel=1e-4)
    assert ratio.pairs == 2


@pytest.mark.parametrize("count", [2, 5, 40])
def test_interval_is_scipys(count):
    rng = np.random.default_rng(count)
    base, other = rng.uniform(1, 3, count), rng.uniform(1, 3, count)
    ratio = paired_ratio(base.tolist(), other.tolist())
    interval = stats.ttest_1samp(np.log(base / other), 0).confidence_interval(0.95)
    assert ratio.mean == pytest.approx(stats.gmean(base / other))
    assert (ratio.low, ratio.high) == pytest.approx(tuple(np.exp(interval)))


def test_one_pair_has_no_interval_and_equal_times_have_an_empty_one():
    assert paired_ratio([2.0], [1.0]).low is None
    same = paired_ratio([2.0, 3.0], [2.0, 3.0])
    assert (same.mean, same.low, same.high) == (1, 1, 1)


def test_repeats_count_by_the_median_of_each_time():
    seconds = [(1.0, 9.0), (5.0, 2.0), (3.0, 4.0)]
    repeats = [
        answer(prefill_seconds=prefill, decode_seconds=decode, total_seconds=prefill + decode)
        for prefill, decode in seconds
    ]
    found = as_run(repeats)
    assert (found.prefill, found.decode, found.total) == (3.0, 4.0, 7.0)


def test_decoding_is_compared_by_the_token_and_the_whole_at_equal_lengths():
    base = run(tokens=11, prefill_seconds=1.0, decode_seconds=2.0, total_seconds=3.0)
    short = run(tokens=6, prefill_seconds=1.0, decode_seconds=0.5, total_seconds=1.5)
    pairs = [(base, short)]
    assert decode_ratio(pairs).mean == pytest.approx(2)  # 0.2 against 0.1 seconds a token
    assert prefill_ratio(pairs).mean == 1
    assert total_ratio(pairs).mean == pytest.approx(3 / (1 + 10 * 0.1))


def test_tokens_that_came_with_the_prefill_are_not_decoded():
    early = run(tokens=11, first_tokens=4, decode_seconds=1.4, steps=10)
    assert early.pace == pytest.approx(0.2)
    assert tokens_per_step([early]) == 1
    assert decode_speed([early]) == pytest.approx(5)


def test_an_answer_of_one_token_has_nothing_to_decode():
    single = run(tokens=1, decode_seconds=0.0, total_seconds=1.0, steps=0)
    assert single.pace is None
    assert decode_ratio([(single, single)]) is None
    assert total_ratio([(single, single)]).mean == 1
    assert tokens_per_step([single]) is None


def test_an_engine_that_does_not_tell_its_prefill_is_still_compared_as_a_whole():
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


def test_drafting_is_nodes_by_the_step_and_what_was_accepted_of_them_by_source():
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
    told = drafting(runs)
    assert told.nodes_per_step == 2.5
    assert (told.all.drafted, told.all.accepted, told.all.share) == (25, 11, 0.44)
    assert {name: guesses.share for name, guesses in told.by_source.items()} == {
        "prompt": 0.5, "output": 1 / 7, "both": 1,
    }  # fmt: skip
    assert list(told.by_source) == ["prompt", "output", "both"]


def test_drafting_of_engines_and_files_that_tell_less():
    assert drafting([run(accepted_by_source={"lookup": 2})]) is None
    assert drafting([run(steps=0, drafted=0)]) is None
    old = drafting([run(steps=10, drafted=30, accepted_by_source={"prompt": 6})])
    assert (old.nodes_per_step, old.all.share, old.by_source) == (3, 0.2, {})
    nothing = drafting([run(steps=10, drafted=0, drafted_by_source={})])
    assert (nothing.nodes_per_step, nothing.all.share) == (0, None)


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
