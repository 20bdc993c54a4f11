"""Drafts of the target over a part of its own cache never change the output.

The parts are so small that guesses are both accepted and rejected, by the target and, where there
are three tiers, by the middle one.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from daily import daily
from late import Late
from test_lossless import OPTIONS, Bench, accepted, assert_same, rejected
from tiny import tiny_helper, tiny_network
from tiny_heads import tiny_head
from tiny_int8 import quantised

from graft.assemble import triforce
from graft.draft.models.growth import ChainGrowth, TreeGrowth
from graft.draft.short_context.kv_selection import Chunks, SnapKV, Window
from graft.draft.short_context.streaming import SelfDrafter

WINDOW, SNAPKV = Window(sinks=2, latest=6), SnapKV(budget=12, observed=4, kernel=3)
CHUNKS = Chunks(budget=8, size=4)
DRAFTERS = ["window", "window tree", "as deep as pays", "snapkv", "triforce"]


def random_prompt(length, seed=0):
    return np.random.default_rng(seed).integers(5, 100, length).tolist()


PROMPTS = [random_prompt(40), random_prompt(61, 1), random_prompt(300, 2)]


def narrow_drafters(engine, head=None):
    """Each of the ways to see a part, over much smaller parts than the presets'."""
    target = engine.drafters.resources.target
    made = {
        "window": SelfDrafter(target, ChainGrowth(3), WINDOW),
        "window tree": SelfDrafter(target, TreeGrowth(3, 3), WINDOW),
        "as deep as pays": SelfDrafter(
            replace(target, costs=tiny_helper().costs), ChainGrowth(8), WINDOW, adaptive=True
        ),
        "snapkv": SelfDrafter(target, ChainGrowth(3), SNAPKV),
        "triforce": triforce(target, CHUNKS),
    }
    if head:
        made["triforce-head"] = triforce(target, CHUNKS, head=engine.drafters.resources.head)
    return made


def bench_of(*, head=None, **options):
    heads = [tiny_head(network=tiny_network(), kind=head)] if head else []
    bench = Bench(heads=heads, **options)
    bench.engine.drafters.update(narrow_drafters(bench.engine, head))
    return bench


@pytest.fixture(scope="module")
def bench():
    return bench_of()


@pytest.mark.parametrize("draft", DRAFTERS)
@pytest.mark.parametrize("option", daily(OPTIONS, "greedy", "temperature", "everything"))
def test_a_part_of_the_cache_never_changes_the_output(bench, option, draft):
    params = replace(OPTIONS[option], max_tokens=32, ignore_eos=True)
    results = [bench.check(prompt, params, draft) for prompt in PROMPTS[:2]]
    assert accepted(results) >= 5
    assert rejected(results) >= 5


@pytest.fixture(scope="module", params=["eagle2", "longspec"])
def head_bench(request):
    return bench_of(head=request.param)


@pytest.mark.parametrize("option", ["greedy", "temperature", "everything"])
def test_a_head_as_the_lowest_tier(head_bench, option):
    params = replace(OPTIONS[option], max_tokens=32, ignore_eos=True)
    results = [head_bench.check(prompt, params, "triforce-head") for prompt in PROMPTS[:2]]
    assert accepted(results) >= 5
    assert rejected(results) >= 5
    assert results[0].stats.inner_drafted_by_source["head"] > 20
    assert sum(result.stats.inner_accepted_by_source["head"] for result in results) > 0


@pytest.mark.parametrize("draft", ["magicdec", "magicdec-snapkv", "magicdec+copy", "window+pld"])
@pytest.mark.parametrize("option", ["greedy", "temperature"])
def test_the_presets_over_a_long_prompt(bench, option, draft):
    """Longer than 257 tokens, or than 1,056, which they may see."""
    params = replace(OPTIONS[option], max_tokens=40, ignore_eos=True)
    result = bench.check(random_prompt(1100 if "window" in draft else 300), params, draft)
    if "window" not in draft:  # that one drafts as much as pays: nothing, by these costs
        assert accepted([result]) >= 5
        assert {"window", "SnapKV", "both"} & result.stats.accepted_by_source.keys()


@pytest.mark.parametrize(
    ("draft", "option"),
    daily(
        product(DRAFTERS, ["greedy", "temperature"]),
        *(("window tree", "greedy"), ("snapkv", "temperature"), ("triforce", "temperature")),
    ),
)
def test_batches_on_shared_prefixes_while_extents_move(draft, option):
    """Several at once, begun alike, with little room at first; again with what was read before;
    several answers to one prompt."""
    engine = bench_of().engine
    params = replace(OPTIONS[option], max_tokens=40, ignore_eos=True)
    long = random_prompt(600, 3)
    prompts = [*PROMPTS, long, [*long, 7, 8], long[:300], long[:520]]
    plain = [engine.generate(prompt, params, draft="plain") for prompt in prompts]
    engine.model.prefixes.use(most_rows=4096)
    moved = count_moves(engine.model.arena)
    for _ in range(2):
        results = engine.generate(prompts, params, draft=draft)
        for result, expected in zip(results, plain, strict=True):
            assert_same(result, expected)
        least = 1 if draft == "as deep as pays" else 20
        assert accepted(results) >= least
        assert accepted(results) + rejected(results) >= 2 * least
    assert results[3].stats.cached_tokens == 512
    assert moved
    del engine.model.arena.place, engine.model.arena.ensure
    several = replace(params, n=3, temperature=0.9, seed=3)
    expected = engine.generate(long, several, draft="plain").choices
    for one, other in zip(
        engine.generate(long, several, draft=draft).choices, expected, strict=True
    ):
        assert_same(one, other)
    engine.loop.collect_finished()
    engine.model.prefixes.clear()
    assert engine.model.arena.taken == 0


def count_moves(arena):
    """Make extents so tight that they must move again and again; the moves that were made."""
    moves, ensure, place = [], arena.ensure, arena.place

    def tight(extent):
        extent.capacity = max(16, extent.capacity - 640)
        return place(extent)

    def watched(extent, rows):
        before = extent.start
        ensure(extent, rows)
        if extent.start != before:
            moves.append(extent)

    arena.place, arena.ensure = tight, watched
    return moves


@pytest.mark.parametrize("draft", DRAFTERS)
def test_a_prompt_that_the_part_holds_whole_is_not_drafted_for(bench, draft):
    params = replace(OPTIONS["greedy"], max_tokens=3, ignore_eos=True)
    result = bench.check(random_prompt(5), params, draft)
    assert not {"window", "SnapKV", "retrieved KV"} & result.stats.drafted_by_source.keys()


@pytest.mark.parametrize("option", ["greedy", "temperature"])
@pytest.mark.parametrize("draft", DRAFTERS)
@pytest.mark.parametrize(
    "forward", daily(["lean", "hook", "int8", "late", "invariant"], "hook", "late")
)
def test_other_forwards(forward, draft, option, benches):
    params = replace(OPTIONS[option], max_tokens=24, ignore_eos=True)
    result = benches[forward].check(PROMPTS[0], params, draft)
    assert accepted([result]) + rejected([result]) >= 5


@pytest.fixture(scope="module")
def benches():
    return {
        "lean": bench_of(forward="lean"),
        "hook": bench_of(forward="hook"),
        "int8": bench_of(network=quantised(tiny_network())),
        "late": bench_of(wrap=Late),
        "invariant": bench_of(
            network=tiny_network().to(torch.bfloat16), forward="lean", invariant=True
        ),
    }


@pytest.mark.parametrize("draft", DRAFTERS)
def test_a_full_cache_means_no_draft(draft):
    bench = bench_of(most_rows=16 * 12)
    params = replace(OPTIONS["greedy"], max_tokens=20, ignore_eos=True)
    bench.check(PROMPTS[0], params, draft)


@pytest.mark.parametrize("draft", DRAFTERS)
def test_up_to_the_end_of_the_context(draft):
    bench = bench_of(context_length=64)
    params = replace(OPTIONS["greedy"], max_tokens=100, ignore_eos=True)
    result = bench.check(PROMPTS[0], params, draft)
    assert len(result.token_ids) == 24
    assert result.finish_reason == "length"


def test_each_tier_counts_and_taking_one_away_shows(bench):
    params = replace(OPTIONS["greedy"], max_tokens=60, ignore_eos=True)
    engine = bench.engine
    target = engine.drafters.resources.target
    engine.drafters["middle alone"] = SelfDrafter(target, ChainGrowth(6), CHUNKS)
    three, two, copies = (
        bench.check(PROMPTS[0], params, draft).stats
        for draft in ("triforce", "middle alone", "copy")
    )
    assert set(three.drafted_by_source) == set(two.drafted_by_source) == {"retrieved KV"}
    assert sum(three.inner_drafted_by_source.values()) > 0
    assert sum(three.inner_accepted_by_source.values()) > 0
    assert three.inner_accepted_by_source <= three.inner_drafted_by_source
    assert not two.inner_drafted_by_source
    assert not copies.inner_drafted_by_source
    assert "retrieved KV" not in copies.drafted_by_source
    # The middle tier's chain is what it would have drafted alone.
    assert three.per_step_drafted == two.per_step_drafted
    assert three.per_step_accepted == two.per_step_accepted
    told = three.as_dict()
    assert told["drafted_by_source"] == {"retrieved KV": sum(three.per_step_drafted)}
    assert told["inner_accepted_by_source"] == dict(three.inner_accepted_by_source)


@pytest.mark.parametrize("option", ["greedy", "temperature"])
def test_the_lowest_tier_saves_forwards(bench, option):
    """Of the middle tier: the target makes as many as without it."""
    params = replace(OPTIONS[option], max_tokens=60, ignore_eos=True)
    engine = bench.engine
    target = engine.drafters.resources.target
    engine.drafters["middle alone"] = SelfDrafter(target, ChainGrowth(6), CHUNKS)
    made = {}
    bench.plain(PROMPTS[0], params)
    for draft in ("triforce", "middle alone"):
        before = engine.model.steps
        made[draft] = bench.check(PROMPTS[0], params, draft).stats, engine.model.steps - before
    assert made["triforce"][0].steps == made["middle alone"][0].steps
    assert made["triforce"][1] < made["middle alone"][1]
