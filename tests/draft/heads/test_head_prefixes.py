"""A head keeps its rows of earlier prompts: a cached prefix costs it no drafts."""

import pytest
from tiny import tiny_engine, tiny_network
from tiny_heads import tiny_head

from graft import Request, SamplingParams

LONG = [5 + i * i % 90 for i in range(700)]
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)


def engine_with(kind):
    network = tiny_network()
    engine = tiny_engine(network, heads=[tiny_head(kind, network)])
    engine.model.prefixes.use(max_rows=8192)
    return engine


def ask(engine, prompt, draft, salt=""):
    result = engine.generate([Request(prompt, PARAMS, draft=draft, cache_salt=salt)])[0]
    stats = result.stats
    return result.token_ids, stats.num_draft_tokens, stats.per_step_accepted, stats


@pytest.mark.parametrize("kind", ["eagle3", pytest.param("eagle2", marks=pytest.mark.slow)])
def test_drafts_after_a_cached_prefix_are_those_without_it(kind):
    engine = engine_with(kind)
    *first, stats = ask(engine, LONG, kind)
    assert stats.cached_tokens == stats.unseen_tokens == 0
    for salt, cached in (("", 512), ("other", 0)):
        *again, stats = ask(engine, LONG, kind, salt)
        assert (stats.cached_tokens, stats.unseen_tokens) == (cached, 0)
        assert again == first
    assert first[1] > sum(first[2]) > 0


def test_a_longer_text_goes_on_after_the_rows_of_an_answer():
    engine, alone = engine_with("eagle3"), engine_with("eagle3")
    answer, *_ = ask(engine, LONG, "eagle3")
    more = [*LONG, *answer, *range(9, 49)]  # 760 tokens, of which the answered text has 720
    *found, stats = ask(engine, more, "eagle3")
    assert (stats.cached_tokens, stats.unseen_tokens) == (512, 0)
    assert found == list(ask(alone, more, "eagle3")[:3])


def test_rows_end_with_a_block_that_the_last_step_completed():
    engine = engine_with("eagle3")
    prompt = LONG[: 512 - PARAMS.max_tokens + 2]  # 513 tokens at the end, the last one without row
    answer, *_ = ask(engine, prompt, "eagle3")
    *_, stats = ask(engine, [*prompt, *answer, 7], "eagle3")
    assert (stats.cached_tokens, stats.unseen_tokens) == (512, 0)


def test_rows_that_another_preset_left_are_unseen():
    engine = engine_with("eagle3")
    plain, *_ = ask(engine, LONG, "plain")
    tokens, *_, stats = ask(engine, LONG, "eagle3")
    assert tokens == plain
    assert (stats.cached_tokens, stats.unseen_tokens) == (512, 512)


def test_running_answers_share_rows():
    engine = engine_with("eagle3")
    plain = ask(engine, LONG, "plain", "elsewhere")[0]
    alike = [Request([*LONG, n], PARAMS, draft="eagle3") for n in (7, 8, 9)]
    results = engine.generate([Request(LONG, PARAMS, draft="eagle3"), *alike])
    assert results[0].token_ids == plain
    assert [each.stats.cached_tokens for each in results] == [0, 512, 512, 512]
    assert [each.stats.unseen_tokens for each in results] == [0, 0, 0, 0]


def test_evicted_rows_are_free():
    engine = engine_with("eagle3")
    drafter = engine.drafters["eagle3"]
    for start in range(2):
        ask(engine, LONG[start:], "eagle3")
    prefixes, arena = drafter._runner.prefixes, drafter._runner.arena
    assert arena.taken == 2 * 512
    prefixes.clear()
    assert arena.taken == 0
