"""Draft models as drafters: their drafts, their KV cache, and when they stop drafting."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from late import Counted, Device, Late
from tiny import VOCABULARY, tiny_draft_model, tiny_engine

from graft.decode.request import Request
from graft.draft.drafter import Budget, DraftContext
from graft.draft.models.growth import ChainGrowth, TreeGrowth
from graft.draft.models.model import ModelDrafter
from graft.models.language_model import TargetStep
from graft.models.step_costs import REFERENCE, StepCosts
from graft.sampling import Sampler, SamplingParams

BUDGET = Budget(63, np.linspace(1, 1.1, 64))  # nodes are all but free
PROMPT = [40, 41, 42, 50, 51, 60]
GROWTHS = {"chain": ChainGrowth(5), "tree": TreeGrowth(4, 3)}
every_growth = pytest.mark.parametrize("growth", GROWTHS)


@pytest.fixture(scope="module")
def draft_model():
    return tiny_draft_model()


def drafter_of(draft_model, growth, *, adaptive=False):
    return ModelDrafter(draft_model, GROWTHS[growth], nodes=30, adaptive=adaptive)


def context_of(sequence=0, prompt=PROMPT, tokens=(70,), params=None, choice=0):
    context = DraftContext(sequence, list(prompt), [], tokens=list(tokens))
    if params:
        context.sampler = Sampler(params, context.prompt, VOCABULARY, choice=choice)
        context.sampler.record(context.tokens)
    return context


def propose(draft_model, growth, *contexts):
    """By a new drafter."""
    drafter = drafter_of(draft_model, growth)
    for context in contexts:
        drafter.start(context)
    trees = drafter.propose(list(contexts), BUDGET)
    for context in contexts:
        drafter.finish(context.sequence)
    return trees


def assert_equal(tree, other):
    for name in ("tokens", "parents"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(other, name))
    np.testing.assert_allclose(tree.scores, other.scores, rtol=1e-4)


def logits_after(draft_model, tokens):
    extent = draft_model.model.open(len(tokens))
    logits = draft_model.model.prefill(extent, tokens)
    draft_model.model.close(extent)
    return logits


def test_chain_is_the_draft_models_greedy_output(draft_model):
    (tree,) = propose(draft_model, "chain", context_of())
    text, score = [*PROMPT, 70], 1.0
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 4]
    for node in range(1, len(tree)):
        probs = logits_after(draft_model, text).softmax(-1)
        text.append(int(probs.argmax()))
        score *= min(float(probs.max()), 0.99)
        assert tree.tokens[node] == text[-1]
        assert tree.scores[node] == pytest.approx(score, rel=1e-4)
        assert tree.source(node) == "model"


def naive_tree(draft_model, text, depth, width, nodes):
    """EAGLE-2's tree with one forward per node; path -> score."""
    found, beam = {}, {(): 1.0}
    for _ in range(depth):
        level = {}
        for path, score in beam.items():
            best = logits_after(draft_model, [*text, *path]).softmax(-1).topk(width)
            for token, share in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                level[(*path, token)] = score * min(max(share, 0.005), 0.99)
        found |= level
        beam = dict(sorted(level.items(), key=lambda each: -each[1])[:width])
    return dict(sorted(found.items(), key=lambda each: -each[1])[:nodes])


def test_tree_follows_eagle2(draft_model):
    (tree,) = propose(draft_model, "tree", context_of())
    expected = naive_tree(draft_model, [*PROMPT, 70], depth=4, width=3, nodes=30)
    paths = tree.paths()
    assert {tuple(path) for path in paths[1:]} == expected.keys()
    for node in range(1, len(tree)):
        assert tree.scores[node] == pytest.approx(expected[tuple(paths[node])], rel=1e-3)


@every_growth
def test_cached_rows_do_not_change_drafts(draft_model, growth):
    """After steps that accept all, some or none of the draft, or that do not run."""
    context, drafter = context_of(), drafter_of(draft_model, growth)
    drafter.start(context)
    for accepted in (0, 1, 2, None, 4, 0, 3, None, None, 1, 5):
        (tree,) = drafter.propose([context], BUDGET)
        assert_equal(tree, propose(draft_model, growth, replace(context, sequence=9))[0])
        if accepted is not None:
            longest = tree.paths()[-1]
            context.tokens += [*longest[:accepted], 75]
    drafter.finish(0)
    assert draft_model.model.arena.taken == 0


@every_growth
def test_batched_drafts_equal_single_drafts_with_one_forward_per_level(draft_model, growth):
    contexts = [
        context_of(0), context_of(1, PROMPT[:2]), context_of(2, PROMPT * 9, [71, 72, 73]),
    ]  # fmt: skip
    alone = [propose(draft_model, growth, context)[0] for context in contexts]
    before = draft_model.model.steps
    together = propose(draft_model, growth, *contexts)
    assert draft_model.model.steps - before == GROWTHS[growth].depth
    for tree, other in zip(together, alone, strict=True):
        assert_equal(tree, other)


PARAMS = [None, SamplingParams(temperature=0.8, seed=3), SamplingParams(temperature=1.5, seed=4)]


@pytest.mark.parametrize("sampled", [False, True])
def test_device_drafts_all_levels_without_waiting(draft_model, sampled):
    """The same tokens as with a wait after each level."""
    late, growth = tiny_draft_model(wrap=Counted), ChainGrowth(5, sampled=sampled)
    found = []
    for each in (draft_model, late):
        drafter = ModelDrafter(each, growth, nodes=5, adaptive=False)
        contexts = [
            context_of(number, PROMPT[number:], params=params or SamplingParams())
            for number, params in enumerate(PARAMS)
        ]
        for context in contexts:
            drafter.start(context)
        trees = []
        for accepted in (0, 2, 5, 1):
            Device.waits.clear()
            before = each.model.steps
            trees += drafter.propose(contexts, BUDGET)
            assert each.model.steps - before == growth.depth
            for context, tree in zip(contexts, trees[-3:], strict=True):
                new = [*tree.paths()[-1][:accepted], 75]
                context.sampler.record(new)
                context.tokens += new
        for context in contexts:
            drafter.finish(context.sequence)
        found.append(trees)
    assert Device.waits["tolist"] == 2  # tokens and probabilities of all levels
    for tree, other in zip(*found, strict=True):
        assert_equal(tree, other)
        if sampled:
            torch.testing.assert_close(
                tree.probs, other.probs.as_subclass(torch.Tensor), rtol=1e-4, atol=1e-6
            )
    assert late.model.arena.taken == 0


@pytest.mark.parametrize(
    ("growth", "params"),
    [
        (ChainGrowth(5, confidence=0.01), SamplingParams()),
        (ChainGrowth(5), SamplingParams(repetition_penalty=1.2)),
        (ChainGrowth(5), SamplingParams(logit_bias={3: 1.0})),
    ],
)
def test_levels_that_depend_on_earlier_tokens_are_not_drafted_ahead(
    draft_model, growth, params, monkeypatch
):
    monkeypatch.setattr(ModelDrafter, "_score_on_device", Mock(side_effect=AssertionError))
    trees = []
    for each in (draft_model, tiny_draft_model(wrap=Late)):
        drafter = ModelDrafter(each, growth, nodes=5, adaptive=False)
        drafter.start(context := context_of(params=params))
        trees += drafter.propose([context], BUDGET)
        drafter.finish(0)
    assert len(trees[0]) > 2
    assert_equal(*trees)


def test_levels_drafted_ahead_follow_the_acceptance_rate(monkeypatch):
    ahead, extend = [], ChainGrowth.extend

    def watched(growth, drafts, logits, levels, score):
        if levels > 1:
            ahead.append(levels)
        extend(growth, drafts, logits, levels, score)

    monkeypatch.setattr(ChainGrowth, "extend", watched)
    late = tiny_draft_model(wrap=Late, cost=0.2)
    step = 5 * late.costs.step(8, 1)
    budget = Budget(63, step * BUDGET.seconds)
    drafter = drafter_of(late, "chain", adaptive=True)
    drafter.start(context := context_of())
    for _ in range(30):
        (tree,) = drafter.propose([context], budget)
        context.tokens += [*tree.paths()[-1], 75]
        drafter.observe([TargetStep(0, context.tokens[-len(tree) :])])
    good = ahead[-1]
    for number in range(120):
        if number == 90:
            ahead.clear()
        drafter.propose([context], budget)
        context.tokens.append(75)
        drafter.observe([TargetStep(0, [75])])
    drafter.finish(0)
    assert good == 5
    assert sum(ahead) <= 4


@every_growth
def test_long_prompt_is_prefilled_in_chunks(draft_model, growth):
    context, drafter = context_of(prompt=PROMPT * 100), drafter_of(draft_model, growth)
    drafter.start(context)
    sizes = []
    for token in (70, 71, 72, 73):
        sizes.append(len(drafter.propose([context], BUDGET)[0]))
        context.tokens.append(token)
    assert sizes[:2] == [1, 1]  # 600 tokens, 256 at a time
    assert min(sizes[2:]) > 1
    drafter.finish(0)


@every_growth
def test_prefill_does_not_stop_other_sequences_drafts(draft_model, growth):
    drafter = drafter_of(draft_model, growth)
    long, short = context_of(0, PROMPT * 100), context_of(1)
    drafter.start(short)
    drafter.propose([short], BUDGET)
    short.tokens.append(71)
    drafter.start(long)
    sizes = [len(tree) for tree in drafter.propose([long, short], BUDGET)]
    assert sizes[0] == 1 < sizes[1]
    for sequence in (0, 1):
        drafter.finish(sequence)


@every_growth
def test_no_draft_while_the_draft_models_cache_is_full(growth):
    draft_model = tiny_draft_model(max_rows=600)
    drafter = drafter_of(draft_model, growth)
    contexts = [context_of(0), context_of(1)]
    for context in contexts:
        drafter.start(context)
    sizes = [len(tree) for tree in drafter.propose(contexts, BUDGET)]
    assert sizes[0] > 1 == sizes[1]
    drafter.finish(0)
    assert len(drafter.propose(contexts[1:], BUDGET)[0]) > 1
    drafter.finish(1)
    drafter.finish(1)
    assert draft_model.model.arena.taken == 0


@every_growth
def test_no_draft_beyond_the_draft_models_context(growth):
    draft_model = tiny_draft_model(context_length=20)
    drafter, context = drafter_of(draft_model, growth), context_of()
    drafter.start(context)
    assert len(drafter.propose([context], BUDGET)[0]) > 1
    context.tokens += [71] * 12
    assert drafter.propose([context], BUDGET)[0].tokens.tolist() == [71]
    assert draft_model.model.arena.taken == 0


@every_growth
@pytest.mark.parametrize("vocabulary", [64, 160])
def test_ids_outside_either_vocabulary_are_never_drafted(growth, vocabulary):
    draft_model = tiny_draft_model(vocab=vocabulary)
    bias = {token: 3.0 for token in range(60, VOCABULARY)}
    for params in (SamplingParams(logit_bias=bias), SamplingParams(temperature=2.0, seed=1)):
        context = context_of(tokens=[127], params=params)  # a root outside the smaller vocabulary
        (tree,) = propose(draft_model, growth, context)
        assert len(tree) > 1
        assert tree.tokens[1:].max() < min(vocabulary, VOCABULARY)


def test_chain_is_sampled_with_the_targets_noise():
    """With the target as draft model every token is accepted, at any temperature."""
    engine = tiny_engine(draft_model=tiny_draft_model(noise=0))
    for params in (
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=0.8, seed=4, top_p=0.9, presence_penalty=0.3),
        SamplingParams(repetition_penalty=1.2),
    ):
        result = engine.generate("the end", replace(params, max_tokens=60, ignore_eos=True),
                                 draft="sd")  # fmt: skip
        assert result.stats.num_accepted_draft_tokens == result.stats.num_draft_tokens > 30


def test_trees_best_branch_is_sampled_with_the_targets_noise():
    """At this temperature few sampled tokens are among the most probable ones."""
    draft_model = tiny_draft_model(noise=0)
    engine = tiny_engine(draft_model=draft_model)
    for seed in range(5):
        params = SamplingParams(temperature=1.5, seed=seed, max_tokens=60, ignore_eos=True)
        plain = engine.generate("the end", params, draft="plain")
        drafted = engine.generate("the end", params, draft="casd")
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.tokens_per_step > 6


def test_trees_leave_out_filtered_tokens(draft_model):
    (wide,) = propose(draft_model, "tree", context_of(params=SamplingParams(temperature=1.0)))
    for limits in ({"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.5}):
        params = SamplingParams(temperature=1.0, **limits)
        (tree,) = propose(draft_model, "tree", context_of(params=params))
        assert 1 < len(tree) < len(wide)
        assert max(np.bincount(tree.parents[1:])) <= 2


def test_callers_process_is_called_once_per_token(draft_model):
    seen = []

    def process(tokens, logits):
        seen.append(len(tokens))
        return logits

    engine = tiny_engine(draft_model=draft_model)
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=30, ignore_eos=True)
    plain = engine.generate("the end", params, draft="plain")
    result = engine.generate(Request("the end", params, draft="sd", process=process))
    assert result.token_ids == plain.token_ids
    assert seen == list(range(seen[0], seen[0] + 30))


# The cost model


def drafted_steps(draft_model, tokens=200, **options):
    """Answer with `sd`; forwards of the draft model, and the result."""
    engine = tiny_engine(draft_model=draft_model)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, **options)
    before = draft_model.model.steps
    result = engine.generate("the end and the answer", params, draft="sd")
    return draft_model.model.steps - before, result


def test_accurate_cheap_draft_model_is_used():
    steps, result = drafted_steps(tiny_draft_model(noise=0.05, cost=0.05))
    assert result.stats.tokens_per_step > 2
    assert steps > result.stats.steps


def test_draft_model_as_slow_as_the_target_is_not_used():
    steps, result = drafted_steps(tiny_draft_model(noise=0.0, cost=1.0))
    assert result.stats.num_draft_tokens == 0
    assert steps == 0  # not even the prompt is prefilled


def test_inaccurate_draft_model_is_soon_not_used():
    """After a few steps it takes no more time than trials may."""
    steps, result = drafted_steps(tiny_draft_model(noise=30.0, cost=0.3), temperature=1.0, seed=1)
    assert result.stats.num_accepted_draft_tokens <= 12
    assert steps * 0.3 < 0.08 * result.stats.steps


def test_inaccurate_draft_model_soon_prefills_few_prompts():
    draft_model = tiny_draft_model(noise=20, cost=0.3)
    rows = watch_rows(draft_model.model)
    engine = tiny_engine(draft_model=draft_model)
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    prefilled = []
    for number in range(60):
        rows.clear()
        engine.generate(f"{number} and the end of the answer", params, draft="sd")
        prefilled.append(bool(rows))
    assert prefilled[0]
    assert 0 < sum(prefilled[30:]) < 15  # trials


def test_draft_model_that_becomes_accurate_is_used_again():
    """Trials go on while it is wrong, so it is used as soon as it is right."""
    draft_model = tiny_draft_model(cost=0.08)
    drafter, context = drafter_of(draft_model, "chain", adaptive=True), context_of()
    target = Budget(63, StepCosts.read(REFERENCE).at(128)[1:])
    drafter.start(context)
    forwards = []
    for step in range(220):
        before = draft_model.model.steps
        drafter.propose([context], target)
        forwards.append(draft_model.model.steps - before)
        wrong = step < 120
        truth = (int(logits_after(draft_model, [*PROMPT, *context.tokens]).argmax()) + wrong) % 128
        context.tokens.append(truth)
        drafter.observe([TargetStep(0, [truth])])
    drafter.finish(0)
    assert min(forwards[:5]) > 0
    assert 1 <= sum(forwards[90:120]) <= 12
    assert min(forwards[-10:]) > 1


# In an engine


@pytest.fixture(
    scope="module", params=[lambda forward: forward, Late], ids=["synchronous", "asynchronous"]
)
def engine(request):
    engine = tiny_engine(draft_model=tiny_draft_model(wrap=request.param), wrap=request.param)
    engine.loop.costs = StepCosts((128,), (1, 64), ((0.016, 0.02),))  # GPU: free rows
    return engine


MODEL_PRESETS = ["auto", "sd", "sd-tree", "casd", "rasd-pld"]


@pytest.mark.parametrize("draft", MODEL_PRESETS)
def test_batched_output_equals_plain_output(engine, draft):
    params = SamplingParams(temperature=0.5, seed=5, max_tokens=30, n=2, ignore_eos=True)
    prompts = ["the end and the answer", "Where did the winner go?" * 3]
    alone = [engine.generate(prompt, params, draft="plain") for prompt in prompts]
    together = engine.generate(prompts, params, draft=draft)
    for one, other in zip(alone, together, strict=True):
        texts = [choice.token_ids for choice in one.choices]
        assert texts == [choice.token_ids for choice in other.choices]
    assert sum(each.stats.num_accepted_draft_tokens for each in together) > 0


@pytest.mark.parametrize("draft", MODEL_PRESETS)
def test_cancelled_request_frees_the_draft_models_rows(draft):
    draft_model = tiny_draft_model()
    engine = tiny_engine(draft_model=draft_model)
    stream = engine.stream("the end", SamplingParams(max_tokens=50, ignore_eos=True), draft=draft)
    for _ in range(8):
        next(stream)
    assert draft_model.model.arena.taken > 0
    stream.close()
    assert draft_model.model.arena.taken == 0
    result = engine.generate("the end", SamplingParams(max_tokens=20, ignore_eos=True), draft=draft)
    assert len(result.token_ids) == 20
    assert draft_model.model.arena.taken == 0


def test_cached_prompt_is_not_prefilled_again():
    draft_model = tiny_draft_model()
    draft_model.model.prefixes.use(max_rows=4096)
    engine = tiny_engine(draft_model=draft_model)
    prompt = [40 + i % 50 for i in range(700)]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    rows = []
    for _ in range(2):
        with_rows = watch_rows(draft_model.model)
        engine.generate(prompt, params, draft="sd")
        rows.append(sum(with_rows))
    assert rows[1] <= rows[0] - 500


def test_choices_of_one_prompt_share_the_draft_models_prefill():
    draft_model = tiny_draft_model(cost=0.01)
    draft_model.model.prefixes.use(max_rows=0)
    engine = tiny_engine(draft_model=draft_model)
    engine.loop.costs = StepCosts((128,), (1, 64), ((0.016, 0.02),))
    prompt = [40 + i % 50 for i in range(700)]
    params = SamplingParams(temperature=0.5, seed=2, max_tokens=30, n=3, ignore_eos=True)
    plain = engine.generate(prompt, params, draft="plain")
    drafted = engine.generate(prompt, params, draft="sd")
    for one, other in zip(plain.choices, drafted.choices, strict=True):
        assert one.token_ids == other.token_ids
        assert other.stats.num_accepted_draft_tokens > 0
    assert draft_model.model.arena.taken == 0


def watch_rows(model):
    """Rows of every forward from now on."""
    seen, run = [], type(model.forward).run

    class Watched(type(model.forward)):
        def run(self, tokens, layout, outputs):
            seen.append(len(tokens))
            return run(self, tokens, layout, outputs)

    model.forward.__class__ = Watched
    return seen


def test_logits_are_fitted_to_the_targets_vocabulary(draft_model):
    assert draft_model.fit_vocabulary(torch.zeros(2, 200)).shape == (2, VOCABULARY)
    padded = draft_model.fit_vocabulary(torch.zeros(1, 100))
    assert padded.shape == (1, VOCABULARY)
    assert torch.isinf(padded[0, 100:]).all()
