"""Drafting never changes the output of any architecture: dense ones, experts, recurrent layers."""

from dataclasses import replace
from itertools import product

import pytest
from daily import daily
from lossless_bench import Bench, accepted, assert_same, rejected, run
from tiny_architectures import HOOKED, LLAMA_SHAPED, MORE_HOOKED, RECURRENT, repeating

from graft.decode.request import Request
from graft.errors import InputError
from graft.sampling import SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")
DRAFTS = ("oracle", "adversary", "copy", "pld", "igpg", "auto")
OTHERS = [*HOOKED, *MORE_HOOKED, *RECURRENT]
READ_WEIGHTS = {"mamba", "jamba"}  # their modules read weights of others, which panels are not
# With the forward that runs them: on a CPU with packed products, or by transformers' own.
CASES = [*product(LLAMA_SHAPED, [None]), *product(OTHERS, ["hook", "hook-panels"])]
FEW = (
    *product(("gpt-oss", "qwen3.5"), ["hook-panels"]),
    ("granite-hybrid", "hook"),
)
PROMPT = [5 + (7 * i + i // 90) % 118 for i in range(90)]
PARAMS = {
    "greedy": SamplingParams(max_tokens=32, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=32, ignore_eos=True, temperature=0.9, top_k=20, seed=7),
}


@pytest.mark.parametrize(("name", "forward"), daily(CASES, *FEW))
def test_drafting_never_changes_the_output_of_an_architecture(name, forward):
    options = {"context_length": 1024, "forward": forward}
    bench, counted = Bench(network=repeating(name), **options), []
    if forward == "hook-panels":
        assert (bench.engine.loaded.forward_name == forward) == (name not in READ_WEIGHTS)
    for kind, draft in ((kind, draft) for kind in PARAMS for draft in DRAFTS):
        result = bench.check(PROMPT, PARAMS[kind], draft)
        counted.append(result)
        if draft == "adversary":
            assert accepted([result]) == 0
        if draft == "oracle":
            assert accepted([result]) >= 15
    assert rejected(counted) >= 20


def test_there_are_enough_architectures():
    assert len({name.partition("-")[0] for name, _ in CASES}) >= 25


@pytest.fixture(scope="module", params=daily(RECURRENT, "granite-hybrid"))
def recurrent_bench(request):
    bench = Bench(network=repeating(request.param), forward="hook-panels", context_length=2048)
    bench.engine.model.prefixes.use(max_rows=4096)
    return bench


@pytest.mark.parametrize("kind", daily(PARAMS, "sampled"))
def test_a_cached_prefix_never_changes_the_output_of_a_recurrent_model(recurrent_bench, kind):
    bench, model = recurrent_bench, recurrent_bench.engine.model
    spacing = model.arena.storage.spacing
    first = [5 + (11 * i + i // 70) % 118 for i in range(spacing + 40)]
    other = [*first[: spacing + 5], *PROMPT[:30]]
    for prompt in (first, other, first):
        expected, _ = run(bench.engine, prompt, PARAMS[kind], "plain", salt=f"{id(prompt)}")
        for draft in ("plain", "copy"):
            result, _ = run(bench.engine, prompt, PARAMS[kind], draft)
            assert_same(result, expected)
    assert result.stats.cached_tokens == spacing


def test_several_sequences_of_a_recurrent_model_at_once(recurrent_bench):
    bench = recurrent_bench
    prompts = [PROMPT[: 15 * i + 1] for i in range(6)]
    requests = [
        Request(prompt, replace(PARAMS["sampled"], seed=i), ("plain", "copy", "auto")[i % 3])
        for i, prompt in enumerate(prompts)
    ]
    alone = [run(bench.engine, r.prompt, r.params, "plain")[0] for r in requests]
    for result, expected in zip(bench.engine.generate(requests), alone, strict=True):
        assert_same(result, expected)


def test_states_are_freed_with_their_sequences(recurrent_bench):
    model = recurrent_bench.engine.model
    model.prefixes.clear()
    assert model.arena.storage.states_used == 0
    extent = model.open(600)
    model.prefill(extent, PROMPT * 4)
    assert model.arena.storage.states_used <= 2
    model.close(extent)
    assert model.arena.storage.states_used == 0


def test_a_part_of_the_context_is_refused_for_recurrent_models(recurrent_bench):
    model = recurrent_bench.engine.model
    extent = model.open(100)
    model.prefill(extent, PROMPT)
    with pytest.raises(InputError, match="recurrent"):
        model.look(extent, 1)
    model.close(extent)
