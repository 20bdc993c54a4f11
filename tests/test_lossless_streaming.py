"""Drafts of the target over a part of its own cache never change the output.

The parts are so small that guesses are both accepted and rejected, by the target and, where there
are three tiers, by the middle one.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from late import Late
from test_lossless import OPTIONS, Bench, accepted, assert_same, rejected
from tiny import tiny_engine, tiny_helper, tiny_network
from tiny_heads import tiny_head

from graft.assemble import triforce
from graft.draft.growth import ChainGrowth, TreeGrowth
from graft.draft.sight import Chunks, SnapKV, Window
from graft.draft.streaming import SelfDrafter

WINDOW, SNAPKV = Window(sinks=2, latest=6), SnapKV(budget=12, observed=4, kernel=3)
CHUNKS = Chunks(budget=8, size=4)
DRAFTERS = ["window", "window tree", "as deep as pays", "snapkv", "triforce"]
# The network of the other lossless tests, its layers drawn wider: what it writes depends on more
# than a window.
SPREAD = 0.35


def random_prompt(length, seed=0):
    return np.random.default_rng(seed).integers(5, 100, length).tolist()


PROMPTS = [random_prompt(40), random_prompt(61, 1), random_prompt(300, 2)]


def narrow_drafters(engine, head=None):
    """Each of the ways to see a part, over much smaller parts than the presets'."""
    target = engine.drafters.helpers.target
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
        made["triforce-head"] = triforce(target, CHUNKS, head=engine.drafters.helpers.head)
    return made


def wide_network():
    return tiny_network(initializer_range=SPREAD)


def bench_of(*, head=None, **options):
    network = options.pop("network", None) or wide_network()
    heads = [tiny_head(network=network, kind=head)] if head else []
    bench = Bench(network=network, heads=heads, **options)
    bench.engine.drafters.update(narrow_drafters(bench.engine, head))
    return bench


@pytest.fixture(scope="module")
def bench():
    return bench_of()


@pytest.mark.parametrize("draft", DRAFTERS)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_part_of_the_cache_never_changes_the_output(bench, option, draft):
    params = replace(OPTIONS[option], max_tokens=48, ignore_eos=True)
    results = [bench.check(prompt, params, draft) for prompt in PROMPTS[:2]]
    assert accepted(results) >= 5
    assert rejected(results) >= 5
