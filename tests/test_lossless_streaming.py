"""Drafts of the target over a part of its own KV cache never change the output.

The parts are so small that draft tokens are both accepted and rejected, by the target and in
TriForce also by the middle drafter.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from daily import daily
from late import Late
from test_lossless import OPTIONS, Bench, accepted, assert_same, rejected
from tiny import tiny_draft_model, tiny_network
from tiny_heads import tiny_head
from tiny_int8 import quantised

from graft.assemble.networks import triforce, triforce_head, window
from graft.draft.models.chains import Chains
from graft.draft.models.growth import ChainGrowth, TreeGrowth
from graft.draft.short_context.kv_selection import Chunks, SnapKV, Window
from graft.draft.short_context.streaming import SelfDrafter

WINDOW, SNAPKV = Window(sinks=2, latest=6), SnapKV(budget=12, observed=4, kernel=3)
CHUNKS = Chunks(budget=8, size=4)
DRAFTERS = ["window", "window tree", "adaptive window", "snapkv", "triforce"]


def random_prompt(length, seed=0):
    return np.random.default_rng(seed).integers(5, 100, length).tolist()


PROMPTS = [random_prompt(40), random_prompt(61, 1), random_prompt(300, 2)]


def narrow_drafters(engine, head=None):
    """Every kind of selection, over much smaller parts than the presets'."""
    resources = engine.drafters.resources
    target = resources.target
    made = {
        "window": SelfDrafter(target, ChainGrowth(3), WINDOW),
        "window tree": SelfDrafter(target, TreeGrowth(3, 3), WINDOW),
        "adaptive window": SelfDrafter(
            replace(target, costs=tiny_draft_model().costs), ChainGrowth(8), WINDOW, adaptive=True
        ),
        "snapkv": SelfDrafter(target, ChainGrowth(3), SNAPKV),
        "triforce": triforce(resources, CHUNKS),
    }
    if head:
        made["triforce-head"] = triforce_head(resources, CHUNKS)
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
@pytest.mark.parametrize("option", daily(OPTIONS, "greedy", "everything"))
def test_a_part_of_the_cache_never_changes_the_output(bench, option, draft):
    params = replace(OPTIONS[option], max_tokens=32, ignore_eos=True)
    results = [bench.check(prompt, params, draft) for prompt in PROMPTS[:2]]
    assert accepted(results) >= 5
    assert rejected(results) >= 5


@pytest.fixture(scope="module", params=["eagle3", "eagle2", "longspec"])
def head_bench(request):
    return bench_of(head=request.param)


@pytest.mark.parametrize(
    "option", daily(["greedy", "temperature", "everything"], "greedy", "everything")
)
def test_triforce_with_a_head(head_bench, option):
    params = replace(OPTIONS[option], max_tokens=32, ignore_eos=True)
    results = [head_bench.check(prompt, params, "triforce-head") for prompt in PROMPTS[:2]]
    assert accepted(results) >= 5
    assert rejected(results) >= 5
    assert results[0].stats.inner_drafted_by_source["head"] > 20
    assert sum(result.stats.inner_accepted_by_source["head"] for result in results) > 0


@pytest.mark.parametrize("draft", ["magicdec", "magicdec-snapkv", "magicdec+copy", "window+pld"])
@pytest.mark.parametrize("option", ["greedy", "temperature"])
def test_presets_with_a_long_prompt(bench, option, draft):
    """Longer than the 257 or 1,056 tokens of their selections."""
    params = replace(OPTIONS[option], max_tokens=40, ignore_eos=True)
    result = bench.check(random_prompt(1100 if "window" in draft else 300), params, draft)
    if "window" not in draft:  # adaptive: nothing at these costs
        assert accepted([result]) >= 5
        assert {"window", "SnapKV", "both"} & result.stats.accepted_by_source.keys()


@pytest.mark.parametrize("gamma", daily([2, 4, 10], 2, 10))
def test_gamma_is_the_length_of_drafts(gamma):
    bench = bench_of(head="eagle3", chains=Chains(gamma))
    bench.engine.drafters["wide window"] = window(bench.engine.drafters.resources)
    params = replace(OPTIONS["greedy"], max_tokens=24, ignore_eos=True)
    for draft in ("magicdec", "magicdec-snapkv", "triforce", "triforce-head", "wide window"):
        result = bench.check(random_prompt(1100 if "wide" in draft else 300), params, draft)
        assert max(result.stats.per_step_drafted) == gamma


@pytest.mark.parametrize(
    ("draft", "option"),
    daily(
        product(DRAFTERS, ["greedy", "temperature"]),
        *(("window tree", "greedy"), ("snapkv", "temperature"), ("triforce", "temperature")),
    ),
)
def test_batches_on_shared_prefixes_while_extents_move(draft, option):
    """A batch with shared beginnings and small extents; the same batch with a filled prefix cache;
    several choices of one prompt."""
    engine = bench_of().engine
    params = replace(OPTIONS[option], max_tokens=24, ignore_eos=True)
    long = random_prompt(600, 3)
    prompts = [*PROMPTS, long, [*long, 7, 8], long[:300], long[:520]]
    plain = [engine.generate(prompt, params, draft="plain") for prompt in prompts]
    engine.model.prefixes.use(max_rows=4096)
    moved = count_moves(engine.model.arena)
    for _ in range(2):
        results = engine.generate(prompts, params, draft=draft)
        for result, expected in zip(results, plain, strict=True):
            assert_same(result, expected)
        min_accepted = 1 if draft == "adaptive window" else 20
        assert accepted(results) >= min_accepted
        assert accepted(results) + rejected(results) >= 2 * min_accepted
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
    """Make extents so small that they move often; the list of moves."""
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
def test_no_draft_where_the_selection_leaves_nothing_out(bench, draft):
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
def test_full_cache_never_changes_the_output(draft):
    bench = bench_of(max_rows=16 * 12)
    params = replace(OPTIONS["greedy"], max_tokens=20, ignore_eos=True)
    bench.check(PROMPTS[0], params, draft)


@pytest.mark.parametrize("draft", DRAFTERS)
def test_up_to_the_end_of_the_context(draft):
    bench = bench_of(context_length=64)
    params = replace(OPTIONS["greedy"], max_tokens=100, ignore_eos=True)
    result = bench.check(PROMPTS[0], params, draft)
    assert len(result.token_ids) == 24
    assert result.finish_reason == "length"


def test_statistics_count_inner_drafts(bench):
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
    # The middle drafter's chain is the one it would have drafted alone.
    assert three.per_step_drafted == two.per_step_drafted
    assert three.per_step_accepted == two.per_step_accepted
    as_dict = three.as_dict()
    assert as_dict["drafted_by_source"] == {"retrieved KV": sum(three.per_step_drafted)}
    assert as_dict["inner_accepted_by_source"] == dict(three.inner_accepted_by_source)


@pytest.mark.parametrize("option", ["greedy", "temperature"])
def test_triforces_copies_save_forwards(bench, option):
    """Forwards of the middle drafter; the target's are as many as without copies."""
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
