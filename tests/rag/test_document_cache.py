"""Cached passages reused at other positions of other prompts."""

import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from late import Late
from tiny import tiny_engine, tiny_network

from benchmarks.rag.logits import continuation_logits, mean_divergence, prefill_prompt
from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.errors import InputError, UnsupportedModelError
from graft.models.spans import read_rows
from graft.rag import prompt_rows
from graft.rag.document_cache import DocumentCache
from graft.rag.reuse import Reuse
from graft.sampling import SamplingParams

SHORT = SamplingParams(max_tokens=6, ignore_eos=True)
APPROXIMATE = ("cics", "keep", "blend")


def text(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(8, 120, count).tolist()


HEAD = ("head", text(37, 100), "demonstrations")
QUESTION = ("question", text(9, 101), "")
PASSAGES = [("passage", text(20 + 3 * i, i), f"p{i}") for i in range(6)]


def prompt(*passages: int, head=HEAD, question=QUESTION) -> list[tuple]:
    return [head, *(PASSAGES[i] for i in passages), question]


@pytest.fixture(scope="module")
def network():
    return tiny_network(layers=4)


@pytest.fixture
def engine(network):
    engine = tiny_engine(network)
    engine.model.prefixes.use(max_rows=4096)
    return engine


def cache_of(engine, mode="cics", *, scope="question", **more) -> DocumentCache:
    options = {name: more.pop(name) for name in ("share", "reorder", "head") if name in more}
    return DocumentCache(engine, Reuse(mode, scope, **options), **more)


def ask(engine, prepared, params=SHORT, **more):
    return engine.generate(PreparedRequest(Request(prepared.tokens, params, **more), prepared.rows))


def rows_of(engine, prepared) -> torch.Tensor:
    """All rows of a prompt but the last token's, with reuse."""
    model = engine.model
    extent = model.open(len(prepared.tokens))
    try:
        prefill_prompt(engine, extent, prepared.tokens, prepared.rows)
        return read_rows(model, extent, 0, extent.total).clone()
    finally:
        model.close(extent)


def reused(prepared) -> list[tuple[int, int]]:
    return [(part.exact, part.approximate) for part in prepared.parts]


# What is reused, and that it changes nothing where it must not


@pytest.mark.parametrize("mode", ["off", "exact", *APPROXIMATE])
@pytest.mark.parametrize("scope", ["question", "all"])
def test_every_mode_has_the_same_tokens_and_the_first_passage_is_exact(engine, mode, scope):
    plain = engine.generate(Request([t for _, tokens, _ in prompt(0) for t in tokens], SHORT))
    engine.model.prefixes.clear()
    cache = cache_of(engine, mode, scope=scope)
    for _ in range(2):
        prepared = cache.prepare(prompt(0))
        result = ask(engine, prepared)
        assert result.token_ids == plain.token_ids
        assert not prepared.approximate
        assert not result.approximate
    if mode != "off":
        assert result.stats.cached_tokens == 37 + 20
        assert reused(prepared) == [(37, 0), (20, 0), (0, 0)]


@pytest.mark.parametrize("forward", ["panels", "lean", "hook"])
def test_empty_cache_is_a_plain_prefill(network, forward):
    engine = tiny_engine(network, forward=forward)
    prepared = cache_of(engine).prepare(prompt(0, 1, 2))
    logits = continuation_logits(engine, prepared.tokens, prepared.rows, [5, 6])
    expected = continuation_logits(engine, prepared.tokens, None, [5, 6])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    assert not prepared.approximate


@pytest.mark.parametrize("mode", APPROXIMATE)
def test_passages_at_other_positions_are_reused_approximately(engine, mode):
    cache = cache_of(engine, mode, share=0.2)
    ask(engine, cache.prepare(prompt(0, 1, 2)))
    prepared = cache.prepare(prompt(3, 2, 0))
    result = ask(engine, prepared)
    assert reused(prepared) == [(37, 0), (0, 0), (0, 26), (0, 20), (0, 0)]
    assert prepared.approximate
    assert result.approximate
    assert result.stats.as_dict()["approximate"]
    assert result.stats.cached_tokens == 37
    assert result.stats.approximate_tokens == (46 if mode != "blend" else 46 - 9)


def test_off_reuses_and_caches_nothing(engine):
    cache = cache_of(engine, "off")
    for _ in range(2):
        result = ask(engine, cache.prepare(prompt(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5)))
        assert result.stats.cached_tokens == 0
    assert cache.statistics().entries == 0


def test_off_with_the_head_reuses_the_head_only(engine):
    cache = cache_of(engine, "off", head=True)
    results = [ask(engine, cache.prepare(prompt(0, 1))) for _ in range(2)]
    assert [result.stats.cached_tokens for result in results] == [0, 37]


def test_exact_reuses_the_longest_common_prefix(engine):
    cache = cache_of(engine, "exact")
    ask(engine, cache.prepare(prompt(0, 1, 2)))
    prepared = cache.prepare(prompt(0, 1, 3))
    assert reused(prepared) == [(37, 0), (20, 0), (23, 0), (0, 0), (0, 0)]
    expected = continuation_logits(engine, prepared.tokens, None, [5, 6, 7])
    given = continuation_logits(engine, prepared.tokens, prepared.rows, [5, 6, 7])
    assert torch.equal(given, expected)
    assert reused(cache.prepare(prompt(1, 0, 2)))[1:] == [(0, 0)] * 4


def test_scope_all_does_not_depend_on_earlier_questions(engine):
    fresh = cache_of(engine, scope="all")
    expected = rows_of(engine, fresh.prepare(prompt(2, 1, 0), "a"))
    used = cache_of(engine, scope="all")
    for order in ((0, 1, 2), (1, 0, 3), (5, 2)):
        ask(engine, used.prepare(prompt(*order), "b"))
    prepared = used.prepare(prompt(2, 1, 0), "c")
    assert reused(prepared) == [(37, 0), (26, 0), (0, 23), (0, 20), (0, 0)]
    assert torch.equal(rows_of(engine, prepared), expected)


def test_scope_question_is_not_shared(engine):
    cache = cache_of(engine)
    ask(engine, cache.prepare(prompt(0, 1), "first"))
    assert reused(cache.prepare(prompt(1, 0), "second"))[1:] == [(0, 0)] * 3
    assert reused(cache.prepare(prompt(1, 0), "first"))[1:] == [(0, 23), (0, 20), (0, 0)]
    cache.end("first")
    assert reused(cache.prepare(prompt(1, 0), "first"))[1:] == [(0, 0)] * 3


def test_rows_on_top_of_approximate_ones_are_not_exact(engine):
    cache = cache_of(engine)
    ask(engine, cache.prepare(prompt(0, 1), "a"))
    ask(engine, cache.prepare(prompt(1, 2), "a"))  # 2 is read behind a reused 1
    again = cache.prepare(prompt(1, 2), "a")
    assert reused(again)[1:] == [(0, 23), (0, 26), (0, 0)]
    other = cache.prepare(prompt(1, 2), "b")
    assert reused(other)[1:] == [(0, 0)] * 3
    cache.end("a")
    exact = DocumentCache(engine, Reuse("exact"))
    assert reused(exact.prepare(prompt(1, 2)))[1:] == [(0, 0)] * 3


# What the rows are


def test_rotated_keys_equal_computed_ones_in_the_first_layer(engine):
    cache = cache_of(engine)
    ask(engine, cache.prepare(prompt(0, 1, 2)))
    prepared = cache.prepare(prompt(2, 3, 1, 0))
    given = rows_of(engine, prepared)
    fresh = rows_of(engine, cache_of(engine, "off").prepare(prompt(2, 3, 1, 0)))
    torch.testing.assert_close(given[:, 0], fresh[:, 0], rtol=0, atol=1e-5)
    assert not torch.allclose(given[:, 1], fresh[:, 1], atol=1e-3)


def test_keep_does_not_rotate_keys_and_continues_after_the_last_position(engine):
    cache = cache_of(engine, "keep")
    first = cache.prepare(prompt(0, 1, 2))
    before = rows_of(engine, first)
    after = rows_of(engine, cache.prepare(prompt(2, 1)))
    assert torch.equal(after[:, :, :, 37:63], before[:, :, :, 80:106])
    assert torch.equal(after[:, :, :, 63:86], before[:, :, :, 57:80])
    # The question stands where it stood: behind passage 2, which ended at position 106
    torch.testing.assert_close(after[:, 0, :, 86:], before[:, 0, :, 106:], rtol=0, atol=1e-5)


def test_share_0_is_cics_and_share_1_is_exact(engine):
    rows = {}
    for name, mode, share in (("cics", "cics", 0.5), ("none", "blend", 0), ("all", "blend", 1)):
        cache = cache_of(engine, mode, share=share)
        ask(engine, cache.prepare(prompt(0, 1, 2)))
        rows[name] = rows_of(engine, cache.prepare(prompt(3, 2, 4, 1, 0)))
    fresh = rows_of(engine, cache_of(engine, "off").prepare(prompt(3, 2, 4, 1, 0)))
    assert torch.equal(rows["none"], rows["cics"])
    torch.testing.assert_close(rows["all"], fresh, rtol=0, atol=1e-4)
    assert not torch.allclose(rows["cics"], fresh, atol=1e-3)


@pytest.mark.parametrize("forward", ["lean", "hook"])
def test_other_forwards_blend_to_exact_rows(network, forward):
    engine = tiny_engine(network, forward=forward)
    cache = cache_of(engine, "blend", share=1, scope="all")
    prepared = cache.prepare(prompt(2, 1, 0))
    fresh = rows_of(engine, cache_of(engine, "off").prepare(prompt(2, 1, 0)))
    torch.testing.assert_close(rows_of(engine, prepared), fresh, rtol=0, atol=1e-4)


# The engine around it


def test_approximate_rows_are_not_shared_with_other_requests(engine):
    """A long prompt, so that whole blocks of it could be shared."""
    order = (0, 1, 2, 3, 4, 5) * 3
    cache = cache_of(engine)
    ask(engine, cache.prepare(prompt(*order)))
    engine.model.prefixes.clear()
    prepared = cache.prepare(prompt(*reversed(order)))
    plain = replace(SHORT, max_tokens=20)
    ask(engine, prepared, plain)
    other = engine.generate(Request(prepared.tokens, plain))
    assert other.stats.cached_tokens == 0
    assert not other.approximate
    assert engine.generate(Request(prepared.tokens, plain)).stats.cached_tokens == 512


def test_exact_prefix_of_an_approximate_prompt_is_shared(engine):
    long = ("head", text(300, 7), "")
    cache = cache_of(engine)
    ask(engine, cache.prepare(prompt(0, 1, head=long)))
    engine.model.prefixes.clear()
    ask(engine, cache.prepare(prompt(1, 0, head=long)))
    tokens = [*long[1], *text(40, 8)]
    assert engine.generate(Request(tokens, SHORT)).stats.cached_tokens == 256


@pytest.mark.parametrize("mode", APPROXIMATE)
def test_drafting_and_batching_change_no_token(engine, mode):
    cache = cache_of(engine, mode, share=0.3)
    ask(engine, cache.prepare(prompt(0, 1, 2)))
    prepared = cache.prepare(prompt(3, 2, 0))
    params = replace(SHORT, max_tokens=24)
    alone = ask(engine, prepared, params, draft="plain").token_ids
    requests = [
        PreparedRequest(Request(prepared.tokens, params, draft="auto"), prepared.rows),
        Request(text(70, 3), params),
        PreparedRequest(Request(prepared.tokens, params, draft="copy"), prepared.rows),
    ]
    first, _, last = engine.generate(requests)
    assert first.token_ids == last.token_ids == alone


def test_asynchronous_device_gives_the_same_tokens(network):
    results = []
    for wrap in (lambda forward: forward, Late):
        engine = tiny_engine(network, wrap=wrap)
        params = replace(SHORT, max_tokens=24)
        stream = engine.stream(text(50, 9), params)
        tokens = [next(stream).token for _ in range(3)]
        cache = cache_of(engine, "blend", share=0.3, scope="all")  # runs forwards of its own
        prepared = cache.prepare(prompt(3, 2, 0))
        tokens += [event.token for event in stream]
        requests = [PreparedRequest(Request(prepared.tokens, params), prepared.rows), text(60, 8)]
        results.append([tokens, *(result.token_ids for result in engine.generate(requests))])
    assert results[0] == results[1]


def test_several_answers_share_a_prompt_with_reused_rows(engine):
    cache = cache_of(engine, "keep")
    ask(engine, cache.prepare(prompt(0, 1, 2)))
    prepared = cache.prepare(prompt(2, 0))
    result = ask(engine, prepared, replace(SHORT, n=3))
    alone = ask(engine, prepared)
    assert [choice.token_ids for choice in result.choices] == [alone.token_ids] * 3
    assert all(choice.approximate for choice in result.choices)
    assert {choice.stats.approximate_tokens for choice in result.choices} == {46}


def test_all_rows_are_freed(engine, monkeypatch):
    model = engine.model
    cache = cache_of(engine, "blend", scope="all")
    prepared = cache.prepare(prompt(0, 1, 2))
    stream = engine.stream(PreparedRequest(Request(prepared.tokens, SHORT), prepared.rows))
    next(stream)
    stream.close()

    def fail(*_):
        raise RuntimeError("broken on purpose")

    prepared = cache.prepare(prompt(2, 1, 0))
    monkeypatch.setattr(prompt_rows, "farthest", fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        ask(engine, prepared)
    model.prefixes.clear()
    assert model.arena.taken == 0


def test_a_bounded_arena_is_enough_for_what_fits_it(network):
    engine = tiny_engine(network, max_rows=448)
    engine.model.prefixes.use(max_rows=256)
    cache = cache_of(engine, scope="all")
    for order in ((0, 1, 2), (2, 1, 0), (5, 4, 3)):
        prepared = [cache.prepare(prompt(*each)) for each in (order, order[::-1])]
        requests = [PreparedRequest(Request(each.tokens, SHORT), each.rows) for each in prepared]
        assert [len(result.token_ids) for result in engine.generate(requests)] == [6, 6]


def test_rows_of_another_prompt_are_refused(engine):
    prepared = cache_of(engine).prepare(prompt(0))
    with pytest.raises(InputError, match="of another prompt"):
        engine.generate(PreparedRequest(Request(prepared.tokens[:-1], SHORT), prepared.rows))


def test_keeping_positions_beyond_the_context_is_refused_in_one_line(network):
    engine = tiny_engine(network, context_length=170)
    cache = cache_of(engine, "keep")
    ask(engine, cache.prepare(prompt(0, 1, 2, 3)))
    long = ("question", text(40, 1), "")
    prepared = cache.prepare(prompt(3, question=long))
    with pytest.raises(InputError, match="beyond the model's context; use another reuse than keep"):
        ask(engine, prepared)


def test_draft_head_starts_after_reused_rows(network):
    from tiny_heads import tiny_head

    engine = tiny_engine(network, heads=[tiny_head("eagle2", network)])
    cache = cache_of(engine)
    params = replace(SHORT, max_tokens=16)
    ask(engine, cache.prepare(prompt(0, 1, 2)), params, draft="eagle2")
    prepared = cache.prepare(prompt(3, 1, 4, 0))
    plain = ask(engine, prepared, params, draft="plain")
    drafted = ask(engine, prepared, params, draft="eagle2")
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.unseen_tokens == len(prepared.tokens) - 9
    assert drafted.stats.num_draft_tokens > 0


# Order, options, statistics


def test_reordering_is_reported_and_extends_the_prefix(engine):
    cache = cache_of(engine, "exact", reorder=True)
    first = cache.prepare(prompt(0, 1, 2))
    ask(engine, first)
    prepared = cache.prepare(prompt(3, 1, 0))
    assert [part.id for part in prepared.parts] == ["demonstrations", "p0", "p1", "p3", ""]
    assert prepared.reordered
    assert not first.reordered
    assert reused(prepared) == [(37, 0), (20, 0), (23, 0), (0, 0), (0, 0)]
    assert not cache_of(engine, "exact").prepare(prompt(3, 1, 0)).reordered


def test_reordering_keeps_repeated_passages(engine):
    cache = cache_of(engine, "exact", reorder=True)
    ask(engine, cache.prepare(prompt(0, 0, 1)))
    for order in ((1, 0), (1, 0, 1), (2, 0, 0)):
        prepared = cache.prepare(prompt(*order))
        expected = sorted(f"p{i}" for i in order)
        assert sorted(part.id for part in prepared.parts[1:-1]) == expected


def test_reordering_puts_cached_passages_first(engine):
    cache = cache_of(engine, reorder=True)
    ask(engine, cache.prepare(prompt(0, 1, 2)))
    prepared = cache.prepare(prompt(3, 2, 0))
    assert [part.id for part in prepared.parts[1:-1]] == ["p0", "p2", "p3"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "some"}, "unknown reuse 'some'; choose one of off, exact"),
        ({"scope": "some"}, "unknown scope 'some'"),
        ({"mode": "blend", "share": 1.5}, "the share is 1.5"),
        ({"mode": "cics", "head": True}, "head=True is for off"),
    ],
)
def test_wrong_options_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        Reuse(**options)


def test_wrong_parts_are_refused(engine):
    cache = cache_of(engine)
    with pytest.raises(InputError, match="at least one part"):
        cache.prepare([("head", [], "")])
    with pytest.raises(InputError, match="tokenize its text first"):
        cache.prepare([HEAD, ("passage", "some text", "1"), QUESTION])
    with pytest.raises(InputError, match="tokenize its text first"):
        cache.prepare([HEAD, 7])
    with pytest.raises(InputError, match="head must come first"):
        cache.prepare([PASSAGES[0], HEAD, QUESTION])


def test_a_prompt_may_end_with_a_passage(engine):
    cache = cache_of(engine)
    for _ in range(2):
        prepared = cache.prepare([HEAD, PASSAGES[0]])
        assert len(ask(engine, prepared).token_ids) == 6
    assert reused(prepared) == [(37, 0), (0, 0)]


def test_statistics_count_the_head_separately(engine):
    cache = cache_of(engine)
    ask(engine, cache.prepare(prompt(0, 1)))
    ask(engine, cache.prepare(prompt(1, 2)))
    found = cache.statistics()
    assert (found.head.parts, found.head.exact_hits, found.head.hits) == (2, 1, 1)
    assert (found.passages.parts, found.passages.approximate_hits) == (4, 1)
    assert found.passages.exact_tokens == 0
    assert found.passages.approximate_tokens == 23
    assert found.passages.computed_tokens == 20 + 23 + 26
    assert found.memory_bytes == (37 + 20 + 23 + 26) * engine.model.arena.storage.row_bytes


def test_model_without_rotary_keys_is_refused(network, monkeypatch):
    engine = tiny_engine(network)
    monkeypatch.setattr(engine.model.forward, "frequencies", list)
    with pytest.raises(UnsupportedModelError, match="use reuse off or exact"):
        cache_of(engine)
    cache_of(engine, "exact")


def test_many_threads(engine):
    cache = cache_of(engine, "blend", scope="all", max_bytes=60 * 1024)
    rounds = [(0, 1, 2), (2, 1, 0), (3, 4, 5), (5, 0, 3), (1, 3, 2), (4, 2, 0)]
    expected = {r: ask(engine, cache.prepare(prompt(*r))).token_ids for r in rounds}
    wrong = []

    def run(own):
        for order in own:
            prepared = cache.prepare(prompt(*order))
            if ask(engine, prepared).token_ids != expected[order]:
                wrong.append(order)

    threads = [threading.Thread(target=run, args=(rounds[i:] + rounds[:i],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.statistics().memory_bytes <= 60 * 1024


# The real model

HEAD_TEXT = (
    "Answer the question from the context.\nQuestion: Who was Ada Lovelace?\n"
    "Answer: Ada Lovelace was an English mathematician.\n\nContext:\n"
)
FACTS = [
    "Lift A1, main entrance, carries 13 persons and was installed in 2011 by the Contractor.",
    "Lift B1 is a bed lift in the surgical wing; it carries 2,500 kg and was installed in 2016.",
    "The Contractor answers a call within 30 minutes if persons are trapped in a lift.",
    "Either party may end this agreement with three months' notice to the end of a year.",
]


@pytest.mark.slow
def test_on_the_real_model_blending_beats_chance_and_comes_closer_with_its_share(
    smollm2, monkeypatch
):
    encode = smollm2.encoder.text
    parts = [
        ("head", encode(HEAD_TEXT), ""),
        *(("passage", encode(f"[{i}] {fact}\n"), str(i)) for i, fact in enumerate(FACTS)),
        ("question", encode("Question: Which lift carries beds, and since when?\nAnswer:"), ""),
    ]
    answer = encode(" Lift B1 carries beds, and it was installed in 2016 in the surgical wing.")
    random = np.random.default_rng(0)
    tokens = [token for _, own, _ in parts for token in own]
    exact = continuation_logits(smollm2, tokens, None, answer)

    def divergence(mode, share=0.0, choose=prompt_rows.farthest):
        cache = cache_of(smollm2, mode, scope="all", share=share)
        prepared = cache.prepare(parts)
        monkeypatch.setattr(prompt_rows, "farthest", choose)
        logits = continuation_logits(smollm2, prepared.tokens, prepared.rows, answer)
        return mean_divergence(exact, logits)

    def by_chance(differences, count):
        return np.sort(random.choice(len(differences), count, replace=False))

    shares = [0.0, 0.15, 0.4, 1.0]
    blended = [divergence("blend", share) for share in shares]
    assert blended[0] == divergence("cics")
    assert all(more < less for less, more in pairwise(blended))
    assert blended[-1] < 1e-6
    chance = [divergence("blend", 0.15, by_chance) for _ in range(3)]
    assert blended[1] < np.mean(chance)
