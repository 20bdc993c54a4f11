"""A model as drafter: what it guesses, what it has read, when it is left alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from late import Counted, Device, Late
from tiny import VOCABULARY, tiny_engine, tiny_helper

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
def helper():
    return tiny_helper()


def drafter_of(helper, growth, *, adaptive=False):
    return ModelDrafter(helper, GROWTHS[growth], nodes=30, adaptive=adaptive)


def context_of(sequence=0, prompt=PROMPT, tokens=(70,), params=None, choice=0):
    context = DraftContext(sequence, list(prompt), [], tokens=list(tokens))
    if params:
        context.sampler = Sampler(params, context.prompt, VOCABULARY, choice=choice)
        context.sampler.record(context.tokens)
    return context


def propose(helper, growth, *contexts):
    """By a drafter that knows nothing yet."""
    drafter = drafter_of(helper, growth)
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


def logits_after(helper, tokens):
    extent = helper.model.open(len(tokens))
    logits = helper.model.prefill(extent, tokens)
    helper.model.close(extent)
    return logits


def test_a_chain_is_what_the_draft_model_would_write(helper):
    (tree,) = propose(helper, "chain", context_of())
    text, score = [*PROMPT, 70], 1.0
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 4]
    for node in range(1, len(tree)):
        share = logits_after(helper, text).softmax(-1)
        text.append(int(share.argmax()))
        score *= min(float(share.max()), 0.99)
        assert tree.tokens[node] == text[-1]
        assert tree.scores[node] == pytest.approx(score, rel=1e-4)
        assert tree.source(node) == "model"


def naive_tree(helper, text, depth, width, nodes):
    """EAGLE-2's tree with a forward of its own for every node; path -> score."""
    found, beam = {}, {(): 1.0}
    for _ in range(depth):
        level = {}
        for path, score in beam.items():
            best = logits_after(helper, [*text, *path]).softmax(-1).topk(width)
            for token, share in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                level[(*path, token)] = score * min(max(share, 0.005), 0.99)
        found |= level
        beam = dict(sorted(level.items(), key=lambda each: -each[1])[:width])
    return dict(sorted(found.items(), key=lambda each: -each[1])[:nodes])


def test_a_tree_is_eagles(helper):
    (tree,) = propose(helper, "tree", context_of())
    expected = naive_tree(helper, [*PROMPT, 70], depth=4, width=3, nodes=30)
    paths = tree.paths()
    assert {tuple(path) for path in paths[1:]} == expected.keys()
    for node in range(1, len(tree)):
        assert tree.scores[node] == pytest.approx(expected[tuple(paths[node])], rel=1e-3)


@every_growth
def test_what_was_read_before_changes_nothing(helper, growth):
    """Rounds that accept all, some or none of the draft, or come to nothing."""
    context, drafter = context_of(), drafter_of(helper, growth)
    drafter.start(context)
    for accepted in (0, 1, 2, None, 4, 0, 3, None, None, 1, 5):
        (tree,) = drafter.propose([context], BUDGET)
        assert_equal(tree, propose(helper, growth, replace(context, sequence=9))[0])
        if accepted is not None:
            longest = tree.paths()[-1]
            context.tokens += [*longest[:accepted], 75]
    drafter.finish(0)
    assert helper.model.arena.taken == 0


@every_growth
def test_sequences_share_a_forward_per_level_and_nothing_else(helper, growth):
    contexts = [
        context_of(0), context_of(1, PROMPT[:2]), context_of(2, PROMPT * 9, [71, 72, 73]),
    ]  # fmt: skip
    alone = [propose(helper, growth, context)[0] for context in contexts]
    before = helper.model.steps
    together = propose(helper, growth, *contexts)
    assert helper.model.steps - before == GROWTHS[growth].depth
    for tree, other in zip(together, alone, strict=True):
        assert_equal(tree, other)


PARAMS = [None, SamplingParams(temperature=0.8, seed=3), SamplingParams(temperature=1.5, seed=4)]


@pytest.mark.parametrize("sampled", [False, True])
def test_a_devices_levels_are_drawn_one_after_the_other_without_a_wait(helper, sampled):
    """To the token what they would be with a look at each."""
    late, growth = tiny_helper(wrap=Counted), ChainGrowth(5, sampled=sampled)
    found = []
    for each in (helper, late):
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
                came = [*tree.paths()[-1][:accepted], 75]
                context.sampler.record(came)
                context.tokens += came
        for context in contexts:
            drafter.finish(context.sequence)
        found.append(trees)
    assert Device.waits["tolist"] == 2  # tokens and shares, of all levels
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
def test_levels_that_depend_on_those_above_are_waited_for(helper, growth, params, monkeypatch):
    monkeypatch.setattr(ChainGrowth, "extend_ahead", None)
    trees = []
    for each in (helper, tiny_helper(wrap=Late)):
        drafter = ModelDrafter(each, growth, nodes=5, adaptive=False)
        drafter.start(context := context_of(params=params))
        trees += drafter.propose([context], BUDGET)
        drafter.finish(0)
    assert len(trees[0]) > 2
    assert_equal(*trees)


def test_a_device_drafts_as_many_levels_at_once_as_are_expected_to_pay(monkeypatch):
    asked, extend = [], ChainGrowth.extend_ahead

    def watched(growth, guesses, logits, levels, read):
        asked.append(levels)
        extend(growth, guesses, logits, levels, read)

    monkeypatch.setattr(ChainGrowth, "extend_ahead", watched)
    late = tiny_helper(wrap=Late, cost=0.2)
    step = 5 * late.costs.step(8, 1)
    budget = Budget(63, step * BUDGET.seconds)
    drafter = drafter_of(late, "chain", adaptive=True)
    drafter.start(context := context_of())
    for _ in range(30):
        (tree,) = drafter.propose([context], budget)
        context.tokens += [*tree.paths()[-1], 75]
        drafter.observe([TargetStep(0, context.tokens[-len(tree) :])])
    good = asked[-1]
    for number in range(120):
        if number == 90:
            asked.clear()
        drafter.propose([context], budget)
        context.tokens.append(75)
        drafter.observe([TargetStep(0, [75])])
    drafter.finish(0)
    assert good == 5
    assert sum(asked) <= 4


@every_growth
def test_a_long_prompt_is_read_in_pieces(helper, growth):
    context, drafter = context_of(prompt=PROMPT * 100), drafter_of(helper, growth)
    drafter.start(context)
    sizes = []
    for token in (70, 71, 72, 73):
        sizes.append(len(drafter.propose([context], BUDGET)[0]))
        context.tokens.append(token)
    assert sizes[:2] == [1, 1]  # 600 tokens, 256 at a time
    assert min(sizes[2:]) > 1
    drafter.finish(0)


@every_growth
def test_who_reads_a_long_prompt_does_not_keep_others_from_drafting(helper, growth):
    drafter = drafter_of(helper, growth)
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
def test_a_draft_model_whose_cache_is_full_drafts_nothing(growth):
    helper = tiny_helper(most_rows=600)
    drafter = drafter_of(helper, growth)
    contexts = [context_of(0), context_of(1)]
    for context in contexts:
        drafter.start(context)
    sizes = [len(tree) for tree in drafter.propose(contexts, BUDGET)]
    assert sizes[0] > 1 == sizes[1]
    drafter.finish(0)
    assert len(drafter.propose(contexts[1:], BUDGET)[0]) > 1
    drafter.finish(1)
    drafter.finish(1)
    assert helper.model.arena.taken == 0


@every_growth
def test_texts_longer_than_the_draft_models_context_are_left_alone(growth):
    helper = tiny_helper(context_length=20)
    drafter, context = drafter_of(helper, growth), context_of()
    drafter.start(context)
    assert len(drafter.propose([context], BUDGET)[0]) > 1
    context.tokens += [71] * 12
    assert drafter.propose([context], BUDGET)[0].tokens.tolist() == [71]
    assert helper.model.arena.taken == 0


@every_growth
@pytest.mark.parametrize("vocabulary", [64, 160])
def test_ids_that_only_one_of_the_models_knows_are_never_drafted(growth, vocabulary):
    helper = tiny_helper(vocab=vocabulary)
    bias = {token: 3.0 for token in range(60, VOCABULARY)}
    for params in (SamplingParams(logit_bias=bias), SamplingParams(temperature=2.0, seed=1)):
        context = context_of(tokens=[127], params=params)  # a root that one may not know
        (tree,) = propose(helper, growth, context)
        assert len(tree) > 1
        assert tree.tokens[1:].max() < min(vocabulary, VOCABULARY)


def test_a_chain_is_drawn_with_the_targets_noise():
    """The target itself as draft model: every draw agrees, at any temperature."""
    engine = tiny_engine(helper=tiny_helper(noise=0))
    for params in (
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=0.8, seed=4, top_p=0.9, presence_penalty=0.3),
        SamplingParams(repetition_penalty=1.2),
    ):
        result = engine.generate("the end", replace(params, max_tokens=60, ignore_eos=True),
                                 draft="sd")  # fmt: skip
        assert result.stats.num_accepted_draft_tokens == result.stats.num_draft_tokens > 30


def test_a_trees_best_branch_is_drawn_with_the_targets_noise():
    """Where the likeliest tokens alone would be guessed, few draws would be among them."""
    helper = tiny_helper(noise=0)
    engine = tiny_engine(helper=helper)
    for seed in range(5):
        params = SamplingParams(temperature=1.5, seed=seed, max_tokens=60, ignore_eos=True)
        plain = engine.generate("the end", params, draft="plain")
        drafted = engine.generate("the end", params, draft="casd")
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.tokens_per_step > 6


def test_trees_leave_out_what_cannot_be_drawn(helper):
    (wide,) = propose(helper, "tree", context_of(params=SamplingParams(temperature=1.0)))
    for limits in ({"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.5}):
        params = SamplingParams(temperature=1.0, **limits)
        (tree,) = propose(helper, "tree", context_of(params=params))
        assert 1 < len(tree) < len(wide)
        assert max(np.bincount(tree.parents[1:])) <= 2


def test_a_callers_process_is_not_disturbed(helper):
    seen = []

    def process(tokens, logits):
        seen.append(len(tokens))
        return logits

    engine = tiny_engine(helper=helper)
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=30, ignore_eos=True)
    plain = engine.generate("the end", params, draft="plain")
    result = engine.generate(Request("the end", params, draft="sd", process=process))
    assert result.token_ids == plain.token_ids
    assert seen == list(range(seen[0], seen[0] + 30))


# The rule of what pays


def drafted_steps(helper, tokens=200, **options):
    """Answer with `sd`; forwards of the draft model, and the result."""
    engine = tiny_engine(helper=helper)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, **options)
    before = helper.model.steps
    result = engine.generate("the end and the answer", params, draft="sd")
    return helper.model.steps - before, result


def test_a_good_and_cheap_draft_model_is_used():
    steps, result = drafted_steps(tiny_helper(noise=0.05, cost=0.05))
    assert result.stats.tokens_per_step > 2
    assert steps > result.stats.steps


def test_one_as_slow_as_the_target_is_left_alone():
    steps, result = drafted_steps(tiny_helper(noise=0.0, cost=1.0))
    assert result.stats.num_draft_tokens == 0
    assert steps == 0  # not even the prompt is read


def test_one_that_is_never_right_is_left_alone():
    """After a few rounds no more time goes into it than trials may take."""
    steps, result = drafted_steps(tiny_helper(noise=30.0, cost=0.3), temperature=1.0, seed=1)
    assert result.stats.num_accepted_draft_tokens <= 12
    assert steps * 0.3 < 0.08 * result.stats.steps


def test_prompts_of_one_that_was_never_right_are_soon_read_no_more():
    helper = tiny_helper(noise=20, cost=0.3)
    rows = watch_rows(helper.model)
    engine = tiny_engine(helper=helper)
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    read = []
    for number in range(60):
        rows.clear()
        engine.generate(f"{number} and the end of the answer", params, draft="sd")
        read.append(bool(rows))
    assert read[0]
    assert 0 < sum(read[30:]) < 15  # tried again now and then


def test_one_that_becomes_good_is_found_again():
    """Tried now and then while it is bad, it is used as soon as it is right."""
    helper = tiny_helper(cost=0.08)
    drafter, context = drafter_of(helper, "chain", adaptive=True), context_of()
    target = Budget(63, StepCosts.read(REFERENCE).at(128)[1:])
    drafter.start(context)
    forwards = []
    for round_ in range(220):
        before = helper.model.steps
        drafter.propose([context], target)
        forwards.append(helper.model.steps - before)
        wrong = round_ < 120
        truth = (int(logits_after(helper, [*PROMPT, *context.tokens]).argmax()) + wrong) % 128
        context.tokens.append(truth)
        drafter.observe([TargetStep(0, [truth])])
    drafter.finish(0)
    assert min(forwards[:5]) > 0
    assert 1 <= sum(forwards[90:120]) <= 12
    assert min(forwards[-10:]) > 1


# In an engine


@pytest.fixture(scope="module", params=[lambda forward: forward, Late], ids=["at once", "late"])
def engine(request):
    engine = tiny_engine(helper=tiny_helper(wrap=request.param), wrap=request.param)
    engine.loop.costs = StepCosts((128,), (1, 64), ((0.016, 0.02),))  # as on a GPU: rows are free
    return engine


NEW = ["auto", "sd", "sd-tree", "casd", "rasd-pld"]


@pytest.mark.parametrize("draft", NEW)
def test_batches_and_several_answers_write_what_each_would_alone(engine, draft):
    params = SamplingParams(temperature=0.5, seed=5, max_tokens=30, n=2, ignore_eos=True)
    prompts = ["the end and the answer", "Where did the winner go?" * 3]
    alone = [engine.generate(prompt, params, draft="plain") for prompt in prompts]
    together = engine.generate(prompts, params, draft=draft)
    for one, other in zip(alone, together, strict=True):
        texts = [choice.token_ids for choice in one.choices]
        assert texts == [choice.token_ids for choice in other.choices]
    assert sum(each.stats.num_accepted_draft_tokens for each in together) > 0


@pytest.mark.parametrize("draft", NEW)
def test_a_cancelled_answer_gives_the_draft_models_rows_back(draft):
    helper = tiny_helper()
    engine = tiny_engine(helper=helper)
    stream = engine.stream("the end", SamplingParams(max_tokens=50, ignore_eos=True), draft=draft)
    for _ in range(8):
        next(stream)
    assert helper.model.arena.taken > 0
    stream.close()
    assert helper.model.arena.taken == 0
    rest = engine.generate("the end", SamplingParams(max_tokens=20, ignore_eos=True), draft=draft)
    assert len(rest.token_ids) == 20
    assert helper.model.arena.taken == 0


def test_a_prompt_read_before_is_not_read_again():
    helper = tiny_helper()
    helper.model.prefixes.use(most_rows=4096)
    engine = tiny_engine(helper=helper)
    prompt = [40 + i % 50 for i in range(700)]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    rows = []
    for _ in range(2):
        with_rows = watch_rows(helper.model)
        engine.generate(prompt, params, draft="sd")
        rows.append(sum(with_rows))
    assert rows[1] <= rows[0] - 500


def test_answers_to_one_long_prompt_share_what_the_draft_model_read():
    helper = tiny_helper(cost=0.01)
    helper.model.prefixes.use(most_rows=0)
    engine = tiny_engine(helper=helper)
    engine.loop.costs = StepCosts((128,), (1, 64), ((0.016, 0.02),))
    prompt = [40 + i % 50 for i in range(700)]
    params = SamplingParams(temperature=0.5, seed=2, max_tokens=30, n=3, ignore_eos=True)
    plain = engine.generate(prompt, params, draft="plain")
    drafted = engine.generate(prompt, params, draft="sd")
    for one, other in zip(plain.choices, drafted.choices, strict=True):
        assert one.token_ids == other.token_ids
        assert other.stats.num_accepted_draft_tokens > 0
    assert helper.model.arena.taken == 0


def watch_rows(model):
    """Rows of every forward from now on."""
    seen, run = [], type(model.forward).run

    class Watched(type(model.forward)):
        def run(self, tokens, layout, outputs):
            seen.append(len(tokens))
            return run(self, tokens, layout, outputs)

    model.forward.__class__ = Watched
    return seen


def test_logits_of_other_widths_are_made_the_targets(helper):
    assert helper.known(torch.zeros(2, 200)).shape == (2, VOCABULARY)
    padded = helper.known(torch.zeros(1, 100))
    assert padded.shape == (1, VOCABULARY)
    assert torch.isinf(padded[0, 100:]).all()
