"""The draw: exact distribution, reproducible noise, processors equal to naive ones."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from graft.errors import InputError
from graft.sampling import Sampler, SamplingParams, as_signed, filter_tokens, gumbel

LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0])
GOLDEN_NOISE = [0.37010293712861353, -1.5501228564216714, -0.8667378304078827, 1.291933832271116]
GOLDEN_UNIFORM = 0.31340891814548977


def sampler(prompt=(), vocabulary=8, **options):
    return Sampler(SamplingParams(**options), list(prompt), vocabulary)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -1), ("temperature", math.nan), ("temperature", "hot"), ("top_k", -1),
        ("top_p", 0), ("top_p", 1.1), ("min_p", -0.1), ("min_p", 2), ("repetition_penalty", 0),
        ("presence_penalty", 101), ("frequency_penalty", -101), ("max_tokens", 0),
        ("max_tokens", True), ("logprobs", -1), ("seed", 1.5), ("seed", 1 << 64), ("stop", [""]),
        ("stop", [3]), ("logit_bias", {1: math.inf}), ("logit_bias", {1: math.nan}),
    ],
)  # fmt: skip
def test_a_bad_parameter_is_named_in_one_line(option, value):
    with pytest.raises(InputError, match=option) as refused:
        SamplingParams(**{option: value})
    assert "\n" not in str(refused.value)


def test_a_bias_on_an_unknown_token_is_refused():
    with pytest.raises(InputError, match="logit_bias names token 8"):
        sampler(logit_bias={8: 1.0})


def test_stop_may_be_one_string():
    assert SamplingParams(stop="end").stop == ("end",)


FILTERS = {"temperature": 1.7, "top_k": 6, "top_p": 0.9, "min_p": 0.05}


@pytest.mark.parametrize(
    ("over", "options"),
    [
        ("places", {}),
        ("places", {"temperature": 0.6}),
        ("places", {"top_k": 3}),
        ("places", {"top_p": 0.8}),
        ("places", {"min_p": 0.2}),
        ("places", FILTERS),
        ("places", {"presence_penalty": 1.0, "repetition_penalty": 1.3,
                    "logit_bias": {7: 3.0, 0: -1.0}}),
        ("seeds", {}),
        ("seeds", FILTERS),
    ],
    ids=str,
)  # fmt: skip
def test_draws_have_the_processed_distribution(over, options):
    options = {"temperature": 1.0, **options}
    counts, draws = np.zeros(len(LOGITS)), 1500
    one = sampler([0, 2], seed=5, **options)
    expected = one.distribution(LOGITS, [])
    for i in range(draws):
        if over == "seeds":
            one.seed = i
        else:
            one.index = i
        counts[one.draw(LOGITS, [])] += 1
    possible = expected.numpy() > 0
    assert not counts[~possible].any()
    wanted = expected.double().numpy()[possible]
    assert chisquare(counts[possible], draws * wanted / wanted.sum()).pvalue > 1e-3


def test_noise_is_the_same_on_every_machine():
    noise = gumbel(as_signed(sampler(seed=123).key(0, 0)), torch.arange(4))
    assert noise.tolist() == pytest.approx(GOLDEN_NOISE, abs=1e-12)
    assert sampler(seed=123).uniform(2, 1) == pytest.approx(GOLDEN_UNIFORM, abs=1e-15)


def test_noise_of_a_token_does_not_depend_on_the_other_tokens():
    key = as_signed(sampler(seed=9).key(3, 0))
    assert gumbel(key, torch.tensor([5, 1000]))[1] == gumbel(key, torch.arange(2000))[1000]


def test_keys_differ_by_seed_choice_stream_and_place():
    one, other = sampler(seed=1), sampler(seed=2)
    second = Sampler(SamplingParams(seed=1), [], 8, choice=1)
    keys = [one.key(0, 0), one.key(1, 0), one.key(0, 1), other.key(0, 0), second.key(0, 0)]
    assert len(set(keys)) == len(keys)
    one.record([3])
    assert one.key(0, 0) == keys[1]  # "after one more" and "one recorded" are the same place


def test_greedy_takes_the_most_likely_token_whatever_the_seed():
    assert {sampler(seed=s, top_p=0.5).draw(LOGITS, []) for s in range(20)} == {0}


def test_a_draw_does_not_depend_on_other_draws():
    alone = sampler(seed=4, temperature=1.0).draw(LOGITS, [1, 2])
    busy = sampler(seed=4, temperature=1.0)
    for ahead in ([], [1], [7, 7, 7]):
        busy.draw(LOGITS.flip(0), ahead)
    assert busy.draw(LOGITS, [1, 2]) == alone


def test_without_a_seed_one_is_chosen_that_can_be_replayed():
    first, second = sampler(temperature=1.0), sampler(temperature=1.0)
    assert first.seed != second.seed
    again = sampler(temperature=1.0, seed=first.seed)
    drawn = [[s.draw(LOGITS, [0] * i) for i in range(50)] for s in (first, again)]
    assert drawn[0] == drawn[1]


def naive_survivors(scores, params):
    """Tokens kept, by the definitions: k best, smallest nucleus, at least min-p of the best."""
    scaled = [s / params.temperature for s in scores]
    ranked = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    if params.top_k:
        ranked = ranked[: params.top_k]
    weights = [math.exp(scaled[i] - scaled[ranked[0]]) for i in ranked]
    kept, mass = [], 0.0
    for token, weight in zip(ranked, weights, strict=True):
        if params.top_p < 1 and mass >= params.top_p * sum(weights):
            break
        mass += weight
        if weight >= params.min_p:
            kept.append(token)
    return sorted(kept)


distinct_scores = st.lists(st.integers(-200, 200), min_size=1, max_size=30, unique=True)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    scores=distinct_scores,
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.1, 0.501, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.31]),
)
def test_filters_keep_what_the_naive_ones_keep(scores, temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    scores = [s / 37 for s in scores]
    tokens, kept = filter_tokens(torch.tensor(scores), params)
    tokens = list(range(len(scores))) if tokens is None else tokens.tolist()
    assert tokens == naive_survivors(scores, params)
    assert kept.tolist() == pytest.approx([scores[t] / temperature for t in tokens], abs=1e-5)


def test_top_p_examines_more_candidates_if_needed():
    flat = torch.linspace(0, 0.1, 5000)
    tokens, _ = filter_tokens(flat, SamplingParams(temperature=1.0, top_p=0.9))
    assert tokens.tolist() == naive_survivors(
        flat.tolist(), SamplingParams(temperature=1.0, top_p=0.9)
    )


def naive_penalties(logits, prompt, output, params):
    scores = list(logits)
    for token in range(len(scores)):
        count = output.count(token)
        if token in prompt or count:
            r = params.repetition_penalty
            scores[token] = scores[token] / r if scores[token] > 0 else scores[token] * r
        scores[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        scores[token] += params.logit_bias.get(token, 0)
    return scores


tokens_lists = st.lists(st.integers(0, 7), max_size=10)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(prompt=tokens_lists, output=tokens_lists, ahead=tokens_lists)
def test_penalties_count_tokens_ahead_as_if_they_were_recorded(prompt, output, ahead):
    params = SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.2, logit_bias={2: -1.5}
    )
    drafting, plain = Sampler(params, prompt, 8), Sampler(params, prompt, 8)
    drafting.record(output)
    plain.record(output)
    plain.record(ahead)
    scores = drafting.scores(LOGITS, ahead)
    assert scores.tolist() == plain.scores(LOGITS, []).tolist()
    expected = naive_penalties(LOGITS.tolist(), prompt, output + ahead, params)
    assert scores.tolist() == pytest.approx(expected, abs=1e-5)


def test_logits_are_not_changed():
    before = LOGITS.clone()
    sampler([1], presence_penalty=1.0, repetition_penalty=2.0, logit_bias={0: 5.0}).draw(
        LOGITS, [3]
    )
    assert torch.equal(LOGITS, before)


def test_tokens_ahead_are_passed_to_process_and_not_recorded():
    """Even by a `process` that fails."""
    shown = []

    def process(history, logits):
        shown.append(list(history))
        if len(history) > 4:
            raise ValueError
        return logits

    sampler = Sampler(SamplingParams(), [1, 2], 10, process=process)
    sampler.record([3])
    sampler.draw(torch.zeros(10), [7])
    with pytest.raises(ValueError):  # noqa: PT011
        sampler.draw(torch.zeros(10), [7, 8])
    assert shown == [[1, 2, 3, 7], [1, 2, 3, 7, 8]]
    assert sampler.history == [1, 2, 3]
