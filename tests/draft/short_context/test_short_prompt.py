"""Drafts from a short version of the prompt."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from daily import daily
from scipy.stats import chisquare
from short_prompts import HEAD, TAIL, ends_only
from tiny import VOCABULARY, costs_of, tiny_draft_model, tiny_engine, tiny_network

from graft.assemble.drafters import make_drafter
from graft.assemble.loading import make_verifier
from graft.assemble.resources import DraftResources
from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.draft.combined import Combined
from graft.draft.drafter import Budget, DraftContext, NoDraft
from graft.draft.models.cache import DraftCache
from graft.draft.models.chains import Chains
from graft.draft.models.growth import ChainGrowth
from graft.draft.models.model import ModelDrafter
from graft.draft.short_context import short_prompt
from graft.draft.short_context.short_prompt import (
    ByPromptLength,
    Prompts,
    ShortContextDrafter,
    min_prompt_length,
)
from graft.errors import InputError
from graft.models.step_costs import StepCosts
from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import from_paths
from graft.tree.prune import keep
from graft.verify.rapid import Shift
from graft.verify.verdict import Promise

BUDGET = Budget(63, np.linspace(1, 1.1, 64))
LONG = [5 + i % 90 for i in range(1100)]
SHORT = ends_only(LONG, [])
PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)
# A long context costs far more than a short one, and nodes cost little.
STEEP = StepCosts((128, 2048), (1, 64), ((0.01, 0.012), (0.2, 0.21)))
FLAT = StepCosts((128,), (1, 64), ((1.0, 2.0),))


@pytest.fixture(scope="module")
def draft_model():
    return tiny_draft_model()


def inner(draft_model, depth=5, **options):
    growth = ChainGrowth(depth, **options)
    return ModelDrafter(draft_model, growth, nodes=depth, adaptive=False)


def context_of(prompt=LONG, sequence=0):
    return DraftContext(sequence, list(prompt), [(0, len(prompt))], tokens=[70])


def proposed(drafter, *contexts):
    return drafter.propose(list(contexts), BUDGET)


def of_prompt(draft_model, prompt, tokens=(70,)):
    """What the draft model itself would draft after a prompt."""
    drafter = inner(draft_model)
    context = DraftContext(9, list(prompt), [], tokens=list(tokens))
    drafter.start(context)
    (tree,) = proposed(drafter, context)
    drafter.finish(9)
    return tree.tokens.tolist()


def test_draft_continues_the_short_prompt_and_the_output(draft_model):
    drafter = ShortContextDrafter(inner(draft_model), Prompts(ends_only, wait=True))
    context = context_of()
    drafter.start(context)
    for token in (71, 72, 73):
        (tree,) = proposed(drafter, context)
        assert tree.tokens.tolist() == of_prompt(draft_model, SHORT, context.tokens)
        assert tree.source(1) == "model"
        context.tokens.append(token)
    drafter.finish(0)
    assert draft_model.model.arena.taken == 0


@pytest.fixture
def real_threads(monkeypatch):
    monkeypatch.setattr(short_prompt, "ThreadPoolExecutor", ThreadPoolExecutor)


@pytest.mark.usefixtures("real_threads")
def test_steps_do_not_wait_for_the_short_prompt(draft_model):
    go = threading.Event()

    def slowly(tokens, *_):
        assert go.wait(60)
        return ends_only(tokens)

    drafter = ShortContextDrafter(inner(draft_model), Prompts(slowly))
    first, second = context_of(), context_of(sequence=1)
    second.prompt = first.prompt  # the same list: two choices of one prompt
    drafter.start(first)
    drafter.start(second)
    assert [len(tree) for tree in proposed(drafter, first, second)] == [1, 1]
    future = drafter._pending[0]
    go.set()
    future.result(60)
    assert min(len(tree) for tree in proposed(drafter, first, second)) > 1
    for sequence in (0, 1):
        drafter.finish(sequence)


def test_choices_of_one_prompt():
    engine = tiny_engine(shorten=ends_only, chains=Chains(gamma=4))
    params = replace(PARAMS, temperature=0.7, seed=3, n=3)
    plain = engine.generate(LONG, params, draft="plain")
    drafted = engine.generate(LONG, params, draft="rapid")
    for one, other in zip(plain.choices, drafted.choices, strict=True):
        assert one.token_ids == other.token_ids
        assert other.stats.num_accepted_draft_tokens > 0


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("why", ["short", "no passages"])
def test_prompts_that_are_not_shortened(draft_model, why, whole):
    """Another model drafts with the whole prompt, the target not at all."""
    calls = []

    def never(tokens, *_):
        calls.append(tokens)

    drafter = ShortContextDrafter(
        inner(draft_model), Prompts(never, drafts_whole=whole, wait=True)
    )  # fmt: skip
    context = context_of(LONG[:200] if why == "short" else LONG)
    drafter.start(context)
    sizes = [len(proposed(drafter, context)[0]) for _ in range(5)]
    assert bool(calls) == (why != "short")
    assert (sizes[-1] > 1) == whole
    drafter.finish(0)
    assert draft_model.model.arena.taken == 0


def test_failing_retriever_is_logged_and_nothing_is_drafted(caplog):
    def broken(tokens, *_):
        raise OSError("no index")

    engine = tiny_engine(shorten=broken)
    plain = engine.generate(LONG, PARAMS, draft="plain")
    result = engine.generate(LONG, PARAMS, draft="rapid")
    assert result.token_ids == plain.token_ids
    assert result.stats.num_draft_tokens == 0
    assert "no drafts from a short prompt: OSError: no index" in caplog.text


@pytest.mark.usefixtures("real_threads")
def test_step_waits_for_verifiers_with_q(draft_model):
    """The same seed must give the same text."""
    drafter = ShortContextDrafter(inner(draft_model), Prompts(ends_only, wait=True))
    context = context_of()
    drafter.start(context)
    assert len(proposed(drafter, context)[0]) > 1
    drafter.finish(0)


@pytest.mark.usefixtures("real_threads")
def test_sequence_may_finish_before_its_prompt_is_shortened(draft_model):
    go = threading.Event()
    drafter = ShortContextDrafter(inner(draft_model), Prompts(lambda *_: go.wait(60) and None))
    drafter.start(context_of())
    drafter.finish(0)
    drafter.finish(0)
    go.set()
    assert draft_model.model.arena.taken == 0


def test_detached_sequence_does_not_count_for_the_answer_length(draft_model):
    model = inner(draft_model)
    drafter = ShortContextDrafter(model, Prompts(ends_only, wait=True))
    expected = model._experience.answer
    for detaches in (True, False):
        drafter.start(context_of())
        proposed(drafter, context_of())
        (drafter.detach if detaches else drafter.finish)(0)
        assert (model._experience.answer == expected) == detaches
        assert draft_model.model.arena.taken == 0
    drafter.detach(0)


# The target with its own short prompt


def test_target_drafts_for_itself_in_other_rows():
    engine = tiny_engine(shorten=ends_only)
    stream = engine.stream(LONG, replace(PARAMS, max_tokens=200), draft="rapid")
    for _ in range(60):
        event = next(stream)
    assert event.step < 50
    assert engine.model.arena.taken > 1100 + HEAD + TAIL
    stream.close()
    assert engine.model.arena.taken == 0


@pytest.mark.parametrize("max_rows", [1280, 1400, 1824, 2400])
def test_full_cache_gives_no_drafts_and_the_same_text(max_rows):
    engine = tiny_engine(shorten=ends_only, max_rows=max_rows)
    plain = tiny_engine().generate(LONG, PARAMS, draft="plain")
    for _ in range(2):
        result = engine.generate(LONG, PARAMS, draft="rapid")
        assert result.token_ids == plain.token_ids
    assert (result.stats.num_draft_tokens > 0) == (max_rows >= 1824)
    engine.loop.collect_finished()
    assert engine.model.arena.taken == 0


def test_requests_do_not_wait_for_a_drafters_prefill():
    """The second prompt begins like the first one's short prompt, and is prefilled itself."""
    prompt = [5 + i % 90 for i in range(1500)]

    def cut(tokens, *_):
        return [*tokens[:600], *range(60, 100)]

    engine = tiny_engine(shorten=cut, own_costs=StepCosts((128,), (1, 64), ((9.0, 9.9),)))
    engine.model.prefixes.use(max_rows=8192)
    other = [*cut(prompt, []), *range(50, 120)]  # differs from the long prompt
    first = engine.stream(prompt, replace(PARAMS, max_tokens=300), draft="rapid")
    for _ in range(5):
        next(first)
    second = engine.generate(other, PARAMS, draft="plain")
    assert len(second.token_ids) == 40
    assert len(first._sequences[0].context.tokens) < 100  # still running
    first.close()


def computed_rows(engine, prompt, draft):
    before = []
    run = type(engine.model.forward).run

    class Watched(type(engine.model.forward)):
        def run(self, tokens, layout, outputs):
            before.append(len(tokens))
            return run(self, tokens, layout, outputs)

    kind, engine.model.forward.__class__ = type(engine.model.forward), Watched
    try:
        result = engine.generate(prompt, PARAMS, draft=draft)
    finally:
        engine.model.forward.__class__ = kind
    return sum(before), result


def test_next_chat_turn_finds_the_short_prompt_cached():
    """The same passages, then the answer and the next question: only these are new."""
    passages = LONG[:700]

    def same_passages(tokens, *_):
        return [*passages, *tokens[1100:]]

    engine = tiny_engine(shorten=same_passages, chains=Chains(gamma=4))
    engine.model.prefixes.use(max_rows=16384)
    first, answer = computed_rows(engine, LONG, "rapid")
    turn = [*LONG, *answer.token_ids, 44, 45, 46]
    again, result = computed_rows(engine, turn, "rapid")
    assert result.token_ids == engine.generate(turn, PARAMS, draft="plain").token_ids
    assert result.stats.num_accepted_draft_tokens > 0
    assert first > 1100  # the short prompt's beginning is cached by the long one
    assert again < 700


# The cost model


def test_auto_does_not_shorten_where_it_saves_no_time():
    """In the reference costs a long context is hardly slower."""
    calls = []
    engine = tiny_engine(shorten=lambda *given: calls.append(given))
    engine.generate(LONG, PARAMS, draft="auto")
    assert not calls


def test_auto_drafts_from_short_prompts_where_long_contexts_are_slow():
    engine = tiny_engine(shorten=ends_only, own_costs=STEEP)
    engine.loop.costs = STEEP
    params = replace(PARAMS, temperature=1.0, seed=5, max_tokens=60)
    plain = engine.generate(LONG, params, draft="plain")
    result = engine.generate(LONG, params, draft="auto")
    assert result.token_ids == plain.token_ids
    assert result.stats.accepted_by_source["short context"] > 5
    short = engine.generate(LONG[:200], params, draft="auto")
    assert "short context" not in short.stats.drafted_by_source


def test_long_and_short_prompts_in_one_batch():
    engine = tiny_engine(shorten=ends_only, own_costs=STEEP)
    engine.loop.costs = STEEP
    params = replace(PARAMS, temperature=1.0, seed=5)
    prompts = [LONG[:150], LONG, LONG[:90], [*LONG, 9, 8]]
    plain = engine.generate(prompts, params, draft="plain")
    drafted = engine.generate(prompts, params, draft="auto")
    for one, other in zip(plain, drafted, strict=True):
        assert one.token_ids == other.token_ids
    by_source = [result.stats.drafted_by_source["short context"] for result in drafted]
    assert [count > 0 for count in by_source] == [False, True, False, True]
    assert engine.model.arena.taken == 0


def test_detach_reaches_the_drafter_of_the_prompts_length():
    long, short = Mock(spec=Combined), Mock(spec=NoDraft)
    drafter = ByPromptLength(long, short, min_tokens=5)
    for sequence, prompt in enumerate(([1, 2], [1, 2, 3, 4, 5])):
        drafter.start(context_of(prompt, sequence))
        drafter.detach(sequence)
        drafter.finish(sequence)
    long.detach.assert_called_once_with(1)
    long.finish.assert_not_called()
    short.finish.assert_not_called()  # not detachable: it keeps the sequence


@pytest.mark.parametrize(("costs", "length"), [(STEEP, 1024), (FLAT, None)])
def test_min_prompt_length(draft_model, costs, length):
    assert min_prompt_length(costs, replace(draft_model, costs=costs), 8, 2048) == length


def test_slow_drafter_is_used_only_with_fixed_gamma():
    for chains, drafted in ((Chains(), False), (Chains(gamma=4), True)):
        engine = tiny_engine(shorten=ends_only, own_costs=FLAT, chains=chains)
        result = engine.generate(LONG, PARAMS, draft="rapid")
        assert (result.stats.num_draft_tokens > 0) == drafted


def test_rapid_uses_the_draft_model_if_it_is_faster():
    for cost, itself in ((0.05, False), (3.0, True)):
        other = tiny_draft_model(cost=cost)
        engine = tiny_engine(shorten=ends_only, draft_model=other)
        engine.generate(LONG, PARAMS, draft="rapid")
        assert (other.model.steps == 0) == itself


# Chains and their options


def test_rapid_without_shortening_is_refused():
    with pytest.raises(InputError, match="'rapid' needs a model with a tokenizer"):
        make_drafter("rapid", DraftResources())
    with pytest.raises(InputError, match="'rapid-up' needs a draft model"):
        make_drafter("rapid-up", DraftResources(shorten=ends_only))


@pytest.mark.parametrize("wrong", [{"gamma": 0}, {"gamma": 1000}, {"confidence": 1.5}])
def test_chain_options_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match="must be between"):
        Chains(**wrong)


@pytest.mark.parametrize("sampled", [False, True])
def test_chain_ends_at_the_first_token_below_confidence(draft_model, sampled):
    params = SamplingParams(temperature=1.0, seed=2) if sampled else SamplingParams()
    lengths = set()
    for start in range(40, 60):
        context = DraftContext(0, LONG[:100], [], tokens=[start])
        context.sampler = Sampler(params, [], VOCABULARY)
        drafter = inner(draft_model, depth=12, confidence=0.5, sampled=sampled)
        drafter.start(context)
        (tree,) = proposed(drafter, context)
        probs = drafter._states[0].draft.token_probs
        assert min(probs[:-1]) >= 0.5
        assert probs[-1] < 0.5 or len(tree) == 13
        lengths.add(len(tree))
        drafter.finish(0)
    assert len(lengths) > 2


def test_sampled_chain_carries_q(draft_model):
    params = SamplingParams(temperature=0.8, top_k=9, seed=4, presence_penalty=0.5)
    context = DraftContext(0, LONG[:50], [], tokens=[70])
    context.sampler = Sampler(params, context.prompt, VOCABULARY)
    drafter = inner(draft_model, sampled=True)
    drafter.start(context)
    (tree,) = proposed(drafter, context)
    assert tree.probs.dtype == torch.float32
    for node in range(len(tree) - 1):
        ahead = tree.tokens[1 : node + 1].tolist()
        extent = draft_model.model.open(100)
        logits = draft_model.model.prefill(extent, [*context.prompt, 70, *ahead])
        draft_model.model.close(extent)
        expected = context.sampler.distribution(logits, ahead)
        torch.testing.assert_close(tree.probs[node], expected, atol=1e-5, rtol=1e-4)
        assert tree.probs[node, tree.tokens[node + 1]] > 0
    drafter.finish(0)


@pytest.mark.parametrize("vocabulary", [64, 160])
def test_q_has_the_targets_vocabulary(vocabulary):
    draft_model = tiny_draft_model(vocab=vocabulary)
    context = DraftContext(0, LONG[:50], [], tokens=[70])
    context.sampler = Sampler(SamplingParams(temperature=1.5, seed=1), [], VOCABULARY)
    drafter = inner(draft_model, sampled=True)
    drafter.start(context)
    (tree,) = proposed(drafter, context)
    assert tree.probs.shape == (len(tree), VOCABULARY)
    assert torch.allclose(tree.probs[:-1].sum(-1), torch.ones(len(tree) - 1))
    assert tree.tokens[1:].max() < min(vocabulary, VOCABULARY)


# Verifiers with q, end to end


def engine_by(verifier, *, eta=10.0, margin=0.0, chains=None, **options):
    chains = chains or Chains(gamma=4, sampled=True)
    verify = make_verifier(verifier, Shift(eta=eta, margin=margin))
    return tiny_engine(shorten=ends_only, chains=chains, verify=verify, **options)


VERIFIERS = {
    "rejection": Promise.SAME_DISTRIBUTION,
    "rapid": Promise.OTHER_DISTRIBUTION,
    "rapid-phat": Promise.OTHER_DISTRIBUTION,
}


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_result_states_its_promise(verifier):
    engine = engine_by(verifier)
    params = replace(PARAMS, temperature=1.0, seed=3)
    drafted = engine.generate(LONG, params, draft="rapid")
    assert drafted.promise is VERIFIERS[verifier]
    assert drafted.lossless == (verifier == "rejection")
    assert 0 < drafted.stats.num_accepted_draft_tokens < drafted.stats.num_draft_tokens
    again = engine.generate(LONG, params, draft="rapid")
    assert again.token_ids == drafted.token_ids  # the same seed gives the same text
    plain = engine.generate(LONG, params, draft="plain")
    greedy = engine.generate(LONG, PARAMS, draft="rapid")
    fused = engine.generate(LONG, params, draft="rapid+copy")
    for result in (plain, greedy, fused):
        assert result.promise is Promise.SAME_TEXT
    assert greedy.token_ids == engine.generate(LONG, PARAMS, draft="plain").token_ids
    assert fused.token_ids == plain.token_ids


def test_larger_shift_accepts_more():
    params = replace(PARAMS, temperature=1.0, seed=3, max_tokens=150)
    rates = []
    for eta in (0.0, 10.0):
        stats = engine_by("rapid-phat", eta=eta).generate(LONG, params, draft="rapid").stats
        rates.append(stats.num_accepted_draft_tokens / stats.num_draft_tokens)
    assert rates[1] > rates[0]


def test_rapid_without_a_shift_equals_rejection():
    params = replace(PARAMS, temperature=1.0, seed=3)
    texts = [
        engine_by(verifier, eta=0.0).generate(LONG, params, draft="rapid").token_ids
        for verifier in VERIFIERS
    ]
    assert texts[0] == texts[1] == texts[2]


def test_soft_greedy_accepts_more_and_is_not_lossless():
    engine = engine_by("rapid", margin=5.0)
    result = engine.generate(LONG, PARAMS, draft="rapid")
    assert result.promise is Promise.OTHER_DISTRIBUTION
    strict = engine_by("rapid").generate(LONG, PARAMS, draft="rapid")
    assert result.stats.tokens_per_step > strict.stats.tokens_per_step


@pytest.mark.parametrize("draft", ["sd", "rapid"])
def test_drafters_prefix_cache_uses_the_salt(draft):
    draft_model = tiny_draft_model()
    engine = tiny_engine(
        draft_model=draft_model if draft == "sd" else None,
        shorten=lambda tokens, *_: tokens[-600:],
    )
    reads = draft_model.model if draft == "sd" else engine.model
    reads.prefixes.use(max_rows=1 << 14)
    stats = engine.generate(Request(LONG, PARAMS, draft, cache_salt="one")).stats
    assert stats.num_draft_tokens > 0
    assert set(reads.prefixes._texts) == {"one"}


def test_partly_prefilled_prompt_uses_the_salt():
    model = tiny_draft_model().model
    model.prefixes.use(max_rows=1 << 14)
    cache = DraftCache(model, replace(context_of(), salt="one"))
    assert cache.prepare(1, 4)
    model.prefill(cache.extent, cache.next_chunk(600))
    cache.cached = 600
    cache.close()
    assert set(model.prefixes._texts) == {"one"}


THREE, ADAPTIVE = Chains(gamma=3, sampled=True), Chains(sampled=True, confidence=0.3)


@pytest.mark.parametrize(
    ("draft", "chains"),
    daily(
        [(draft, chains) for draft in ("rapid", "sd") for chains in (THREE, ADAPTIVE)],
        ("sd", ADAPTIVE),
    ),
)  # fmt: skip
def test_rejection_keeps_the_targets_distribution(draft, chains):
    check_second_and_third_token(draft, chains)


class Without:
    """Forbids some tokens."""

    def __init__(self, *forbidden):
        self._forbidden = list(forbidden)

    def process(self, _, logits):
        return logits.index_fill(0, torch.tensor(self._forbidden), -torch.inf)

    def prune(self, _, tree):
        inside = [True]
        for parent, token in zip(tree.parents[1:], tree.tokens[1:], strict=True):
            inside.append(inside[parent] and token not in self._forbidden)
        return keep(tree, np.flatnonzero(inside).tolist())


@pytest.mark.slow
def test_constraint_does_not_bias_a_sampled_chain():
    chains = Chains(gamma=3, sampled=True)
    check_second_and_third_token("sd", chains, Without(1, 4, 6), temperature=5.0)


def check_second_and_third_token(draft, chains, constraint=None, temperature=1.5):
    """The tokens of many answers follow plain decoding's closed form."""
    vocabulary, draws = 8, 700
    draft_model = replace(tiny_draft_model(vocab=vocabulary, cost=0.001), vocabulary=vocabulary)
    engine = tiny_engine(
        tiny_network(vocab=vocabulary),
        draft_model=draft_model,
        shorten=lambda tokens, *_: tokens[-12:],
        chains=chains,
        verify=make_verifier("rejection", Shift()),
        own_costs=costs_of(0.0005),  # below the draft model's, so the target drafts for itself
    )
    engine.loop.costs = StepCosts((128,), (1, 64), ((0.016, 0.02),))  # rows cost almost nothing
    for model in (engine.model, draft_model.model):
        model.prefixes.use(max_rows=1 << 14)
    prompt = [i * 5 % vocabulary for i in range(40 if constraint else 1030)]
    params = SamplingParams(
        temperature=temperature, max_tokens=4, ignore_eos=True, n=draws, seed=11
    )
    constrain = (lambda _: constraint) if constraint else None
    choices = engine.generate(
        PreparedRequest(Request(prompt, params, draft), constrain=constrain)
    ).choices
    accepted = sum(each.stats.num_accepted_draft_tokens for each in choices)
    drafted = sum(each.stats.num_draft_tokens for each in choices)
    assert accepted > 100
    assert drafted - accepted > 20
    counts = np.zeros((vocabulary, vocabulary))
    for each in choices:
        counts[tuple(each.token_ids[1:3])] += 1
    process = constraint.process if constraint else None
    sampler = Sampler(params, prompt, vocabulary, process=process)
    expected = draws * second_and_third(engine.model, prompt, sampler, vocabulary)
    often = expected > 5
    observed = np.append(counts[often], counts[~often].sum())
    pooled = np.append(expected[often], expected[~often].sum())
    assert chisquare(observed, pooled * observed.sum() / pooled.sum()).pvalue > 1e-3


def second_and_third(model, prompt, sampler, vocabulary):
    """[V, V]: their probabilities in plain decoding, over all first tokens."""
    joint = np.zeros((vocabulary, vocabulary))
    extent = model.open(len(prompt) + 20)
    first = sampler.distribution(model.prefill(extent, prompt), [])
    for token in range(vocabulary):
        tree = from_paths(token, [[each] for each in range(vocabulary)])
        root, *below = model.score([extent], [tree])[0]
        second = sampler.distribution(root, [token])
        third = torch.stack([sampler.distribution(each, []) for each in below])
        joint += (first[token] * second[:, None] * third).numpy()
    model.close(extent)
    return joint
