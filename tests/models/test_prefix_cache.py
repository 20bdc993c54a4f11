"""Rows of earlier prompts: found, used, the same to the last bit, and forgotten in time."""

import pytest
from tiny import tiny_engine, tiny_network

from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.models.arena import BLOCK
from graft.sampling import SamplingParams

DOCUMENT = [3 + i * i % 120 for i in range(3 * BLOCK + 40)]
FIRST, SECOND = [*DOCUMENT, 5, 6, 7], [*DOCUMENT, 8, 9, 10, 11]
PARAMS = SamplingParams(temperature=0.9, seed=1, max_tokens=12, ignore_eos=True)


def caching_engine(rows=20 * BLOCK, **options):
    engine = tiny_engine(**options)
    engine.model.prefixes.use(max_rows=rows)
    return engine


def read_rows(engine, request):
    """The answer, and how many prompt tokens were read for it."""
    read, score = [], engine.model.score_all

    def watched(extents, trees, *, last_only):
        read.extend(len(t) for t, last in zip(trees, last_only, strict=True) if last)
        return score(extents, trees, last_only=last_only)

    engine.model.score_all = watched
    try:
        return engine.generate(request), sum(read)
    finally:
        engine.model.score_all = score


@pytest.mark.parametrize(
    ("forward", "draft"),
    [("panels", "plain"), ("panels", "auto"), ("lean", "auto"), ("hook", "auto")],
)
def test_a_second_question_reads_only_what_is_new(forward, draft):
    engine = caching_engine(network=tiny_network(), forward=forward)
    fresh = tiny_engine(network=tiny_network(), forward=forward)
    engine.generate(FIRST, PARAMS, draft=draft)
    result, read = read_rows(engine, Request(SECOND, PARAMS, draft))
    assert result.token_ids == fresh.generate(SECOND, PARAMS, draft=draft).token_ids
    assert result.stats.cached_tokens == 3 * BLOCK
    assert read == len(SECOND) - 3 * BLOCK


def test_shared_rows_give_logits_equal_to_the_last_bit():
    engine, fresh = caching_engine(), tiny_engine()
    logged = SamplingParams(max_tokens=20, ignore_eos=True, logprobs=5)
    engine.generate(FIRST, logged)
    with_cache, without = list(engine.stream(SECOND, logged)), list(fresh.stream(SECOND, logged))
    assert [e.top for e in with_cache] == [e.top for e in without]
    assert [e.probability for e in with_cache] == [e.probability for e in without]


def test_the_same_prompt_again_reads_at_least_its_last_token():
    engine = caching_engine()
    whole = DOCUMENT[: 2 * BLOCK]
    first, second = (engine.generate(whole, PARAMS) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert second.stats.cached_tokens == BLOCK


def test_a_chat_that_goes_on_finds_its_own_answer():
    engine = caching_engine()
    first = engine.generate(FIRST, SamplingParams(max_tokens=BLOCK, ignore_eos=True))
    following = [*FIRST, *first.token_ids, 4, 5, 6]
    second = engine.generate(following, PARAMS)
    assert second.stats.cached_tokens == 4 * BLOCK  # ends inside the answer
    third = engine.generate([*following, *second.token_ids, *range(3, 100)], PARAMS)
    assert third.stats.cached_tokens == 4 * BLOCK
    assert third.token_ids == tiny_engine().generate(
        [*following, *second.token_ids, *range(3, 100)], PARAMS
    ).token_ids  # fmt: skip


def test_concurrent_requests_prefill_a_shared_document_once():
    engine, fresh = caching_engine(), tiny_engine()
    questions = [[*DOCUMENT, 5 + i, 9, 3 + i] for i in range(6)]
    results, read = read_rows(engine, [Request(q, PARAMS) for q in questions])
    assert [r.token_ids for r in results] == [
        fresh.generate(q, PARAMS).token_ids for q in questions
    ]
    assert read == len(questions[0]) + 5 * (len(questions[0]) - 3 * BLOCK)
    assert engine.model.arena.taken <= 5 * BLOCK


def test_the_least_recently_used_is_evicted_first():
    engine = caching_engine(rows=7 * BLOCK)
    documents = [[3 + (i * 7 + n) % 120 for i in range(2 * BLOCK + 5)] for n in range(4)]
    params = SamplingParams(max_tokens=2, ignore_eos=True)

    def cached(n):
        return engine.generate(documents[n], params).stats.cached_tokens

    assert [cached(n) for n in (0, 1, 2)] == [0, 0, 0]
    assert cached(0) == 2 * BLOCK  # used: now 1 is the oldest
    assert cached(3) == 0  # takes the place of 1
    assert [cached(n) for n in (0, 2, 3)] == [2 * BLOCK] * 3
    assert cached(1) == 0
    assert engine.model.arena.taken <= 7 * BLOCK
    engine.model.prefixes.clear()
    assert engine.model.arena.taken == 0


def test_a_cache_of_no_size_keeps_nothing():
    engine = caching_engine(rows=0)
    engine.generate(FIRST, PARAMS)
    assert engine.model.arena.taken == 0
    assert engine.generate(SECOND, PARAMS).stats.cached_tokens == 0


def test_a_text_larger_than_the_cache_is_not_cached():
    engine = caching_engine(rows=2 * BLOCK)
    engine.generate(FIRST, PARAMS)
    assert engine.model.arena.taken == 0


def test_cached_rows_are_evicted_for_requests_in_a_bounded_arena():
    engine = caching_engine(max_rows=6 * BLOCK)
    engine.generate(FIRST, PARAMS)
    assert engine.model.arena.taken == 3 * BLOCK
    other = [7, *DOCUMENT]
    assert (
        engine.generate(other, PARAMS).token_ids == tiny_engine().generate(other, PARAMS).token_ids
    )


def test_a_cancelled_request_leaves_what_it_has_read():
    engine = caching_engine()
    stream = engine.stream(FIRST, PARAMS)
    next(stream)
    stream.close()
    assert engine.generate(SECOND, PARAMS).stats.cached_tokens == 3 * BLOCK


def test_a_request_may_refuse_what_was_read_before_and_leave_nothing():
    engine = caching_engine()
    anew = PreparedRequest(Request(FIRST, PARAMS), max_cached=0)
    expected, read = read_rows(engine, anew)
    assert read == len(FIRST)
    result, read = read_rows(engine, Request(SECOND, PARAMS))
    assert (result.stats.cached_tokens, read) == (0, len(SECOND))  # nothing was left by the first
    result, read = read_rows(engine, anew)
    assert (result.stats.cached_tokens, read) == (0, len(FIRST))  # and nothing taken of the second
    assert result.token_ids == expected.token_ids


def test_a_request_may_share_its_first_tokens_alone():
    engine = caching_engine()
    shared = PreparedRequest(Request(FIRST, PARAMS), max_cached=2 * BLOCK + 5)
    result, read = read_rows(engine, shared)
    assert read == len(FIRST)
    result, read = read_rows(engine, Request(SECOND, PARAMS))
    assert result.stats.cached_tokens == 2 * BLOCK  # of 3 blocks that the two have in common
    result, read = read_rows(engine, shared)
    assert (result.stats.cached_tokens, read) == (2 * BLOCK, len(FIRST) - 2 * BLOCK)


def test_several_answers_to_a_prompt_that_leaves_nothing_behind():
    engine = caching_engine()
    several = SamplingParams(temperature=0.9, seed=1, max_tokens=9, ignore_eos=True, n=3)
    engine.generate(PreparedRequest(Request(FIRST, several), max_cached=0))
    _, read = read_rows(engine, Request(SECOND, PARAMS))
    assert read == len(SECOND)


def test_prompts_of_different_salts_share_nothing():
    engine = caching_engine()
    plain = tiny_engine().generate(SECOND, PARAMS)
    salts = ["", "one", "two", "one", ""]
    results = [engine.generate(Request(SECOND, PARAMS, cache_salt=salt)) for salt in salts]
    assert [result.stats.cached_tokens > 0 for result in results] == [False] * 3 + [True] * 2
    assert all(result.token_ids == plain.token_ids for result in results)


def test_several_answers_to_a_prompt_keep_to_its_salt():
    engine = caching_engine()
    several = SamplingParams(temperature=0.9, seed=1, max_tokens=BLOCK, ignore_eos=True, n=2)
    engine.generate(Request(FIRST, several, cache_salt="one"))
    for salt, cached in (("", 0), ("one", 3 * BLOCK)):
        result = engine.generate(Request(SECOND, PARAMS, cache_salt=salt))
        assert result.stats.cached_tokens == cached


def test_a_request_may_share_its_first_tokens_alone_and_only_by_salt():
    engine = caching_engine()
    engine.generate(
        PreparedRequest(Request(FIRST, PARAMS, cache_salt="one"), max_cached=2 * BLOCK + 5)
    )
    for salt, cached in (("two", 0), ("one", 2 * BLOCK)):
        result = engine.generate(Request(SECOND, PARAMS, cache_salt=salt))
        assert result.stats.cached_tokens == cached


def test_salts_are_removed_with_their_texts():
    engine = caching_engine(rows=5 * BLOCK)
    for salt in range(6):
        engine.generate(Request(FIRST, PARAMS, cache_salt=str(salt)))
    assert len(engine.model.prefixes._texts) <= 2
    engine.model.prefixes.clear()
    assert not engine.model.prefixes._texts
