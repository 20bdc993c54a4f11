"""RAPID's rules: what they give in closed form, and that they give it."""

from itertools import product

import numpy as np
import pytest
import torch
from daily import daily
from scipy.stats import chisquare
from tiny import tiny_draft_model, tiny_engine

from graft.decode.request import Request
from graft.draft.models.chains import Chains
from graft.errors import InputError
from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import chain, from_paths
from graft.verify.chain import classic, rejection
from graft.verify.rapid import Rapid, Shift
from graft.verify.verdict import Promise
from graft.verify.walk import walk

P, Q = torch.tensor([0.50, 0.30, 0.20]), torch.tensor([0.20, 0.60, 0.20])
VERIFIERS = {
    "rapid": lambda shift: Rapid(shift, Shift.paper_rule),
    "rapid-phat": lambda shift: Rapid(shift, Shift.phat_rule),
}
rapid = VERIFIERS["rapid"]
every_verifier = pytest.mark.parametrize("verifier", VERIFIERS)
every_tail = pytest.mark.parametrize("tail", ["drafter", "target"])


def all_of_it(eta):
    """Eq. 6 without a tail rule: nothing is rare enough for `target`'s in these few tokens."""
    return Shift(eta=eta, tail="target")


def output(rule, p, q):
    """The distribution of the token that a rule emits at a drafted position."""
    accepts, residual = rule(p, q)
    kept = torch.minimum(q, accepts)
    total = residual.sum(-1, keepdim=True)
    drawn = torch.where(total > 0, residual / total, p)
    return kept + (1 - kept.sum(-1, keepdim=True)) * drawn


def random_pairs(count, vocabulary, seed=0):
    rng = np.random.default_rng(seed)
    shape = np.full(vocabulary, 0.3)
    return (torch.tensor(rng.dirichlet(shape, count)) for _ in range(2))


def distance(one, other):
    return 0.5 * (one - other).abs().sum(-1)


def test_counterexample_to_the_papers_proof():
    shift = all_of_it(1.0)
    assert shift(P, Q).tolist() == pytest.approx([0.3798, 0.4152, 0.2051], abs=1e-4)
    assert (P - torch.minimum(Q, shift(P, Q))).tolist() == pytest.approx(
        [0.30, -0.1152, 0], abs=1e-4
    )
    emitted = output(shift.paper_rule, P, Q)
    assert emitted.tolist() == pytest.approx([0.3848, 0.4152, 0.2000], abs=1e-4)
    assert float(distance(emitted, P)) == pytest.approx(0.1152, abs=1e-4)
    assert float(distance(emitted, shift(P, Q))) == pytest.approx(0.0051, abs=1e-4)


def test_with_two_tokens_the_output_is_the_drafters():
    p, q = torch.tensor([0.6, 0.4]), torch.tensor([0.1, 0.9])
    shift = Shift(eta=5.0, tail="drafter")
    assert shift(p, q).tolist() == pytest.approx([0.010, 0.990], abs=1e-3)
    emitted = output(shift.paper_rule, p, q)
    assert emitted.tolist() == pytest.approx([0.1, 0.9], abs=1e-6)
    assert float(distance(emitted, p)) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("eta", [1, 5, 10, 20])
def test_the_papers_rule_always_favours_where_the_drafter_is_surest(eta):
    p, q = random_pairs(2000, 8)
    shifted = (p.log() + eta * (q - p)).softmax(-1)
    emitted = output(lambda *_: (shifted, torch.maximum(p - shifted, p - q).clamp(min=0)), p, q)
    best = (q - p).argmax(-1, keepdim=True)
    assert (shifted.gather(1, best) > p.gather(1, best)).all()
    assert (emitted.gather(1, best) > p.gather(1, best)).all()
    assert (distance(emitted, p) > 1e-6).all()


@every_tail
@pytest.mark.parametrize("eta", [0.0, 1.0, 10.0, 50.0])
def test_every_rule_emits_a_distribution(eta, tail):
    p, q = random_pairs(2000, 12, seed=1)
    shift = Shift(eta=eta, tail=tail)
    for rule in (shift.paper_rule, shift.phat_rule, classic):
        emitted = output(rule, p, q)
        assert emitted.min() >= 0
        assert torch.allclose(emitted.sum(-1), torch.ones(2000, dtype=torch.float64))


@pytest.mark.parametrize("eta", [1.0, 10.0])
def test_the_drafters_tail_rule_stays_normalised_and_the_printed_one_does_not(eta):
    p, q = random_pairs(500, 12, seed=2)
    ours, printed = (Shift(eta=eta, tail=tail)(p, q).sum(-1) for tail in ("drafter", "target"))
    assert torch.allclose(ours, torch.ones_like(ours))
    assert (printed - 1).abs().max() > 0.05


def test_tokens_unlikely_for_the_drafter_keep_their_odds():
    p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.9, 0.06, 0.03, 0.01])
    shifted = Shift(eta=3.0)(p, q)
    assert (shifted[1:] / shifted[1]).tolist() == pytest.approx((p[1:] / p[1]).tolist())
    assert shifted[0] > p[0]


@every_tail
def test_rapid_phat_gives_the_shifted_target(tail):
    p, q = random_pairs(500, 10, seed=3)
    shift = Shift(eta=7.0, tail=tail)
    shifted = shift(p, q) / shift(p, q).sum(-1, keepdim=True)
    assert torch.allclose(output(shift.phat_rule, p, q), shifted)


@every_tail
def test_without_a_shift_both_give_the_target(tail):
    p, q = random_pairs(500, 10, seed=4)
    for rule in (
        Shift(eta=0.0, tail=tail).paper_rule,
        Shift(eta=0.0, tail=tail).phat_rule,
        classic,
    ):
        assert torch.allclose(output(rule, p, q), p)


# Verifiers draw by their laws


def tree_of(token, q):
    return chain([0, token], probs=torch.stack([q, torch.zeros_like(q)]))


def sampler_of(seed, **options):
    return Sampler(SamplingParams(**{"temperature": 1.0, "seed": seed} | options), [], 3)


def emitted_first(verify, token, seed):
    """What a one-token draft becomes."""
    verdict = verify(tree_of(token, Q), torch.stack([P.log(), P.log()]), sampler_of(seed))
    return token if len(verdict.path) == 2 else verdict.next_token, verdict


@pytest.mark.parametrize(
    ("verifier", "tail", "eta"),
    daily(
        product(VERIFIERS, ["drafter", "target"], [1.0, 10.0]),
        ("rapid", "drafter", 10.0),
        ("rapid", "target", 1.0),
        ("rapid-phat", "drafter", 1.0),
        ("rapid-phat", "target", 10.0),
    ),
)
def test_sampled_tokens_follow_the_closed_form(verifier, tail, eta):
    shift = Shift(eta=eta, tail=tail)
    rule = {"rapid": shift.paper_rule, "rapid-phat": shift.phat_rule}[verifier]
    rng, counts, draws = np.random.default_rng(int(eta)), np.zeros(3), 800
    for seed, token in enumerate(
        rng.choice(3, draws, p=Q.double().numpy() / Q.double().sum().item())
    ):
        found, verdict = emitted_first(VERIFIERS[verifier](shift), int(token), seed)
        counts[found] += 1
        assert verdict.promise is Promise.OTHER_DISTRIBUTION
    wanted = output(rule, P, Q).double().numpy()
    often = wanted > 1e-4
    assert counts[~often].sum() <= 3
    scaled = wanted[often] / wanted[often].sum() * counts[often].sum()
    assert chisquare(counts[often], scaled).pvalue > 1e-3


@every_verifier
def test_without_a_shift_every_verdict_is_the_classic_rules(verifier):
    verify, rng = VERIFIERS[verifier](Shift(eta=0.0)), np.random.default_rng(0)
    for seed in range(200):
        q = torch.tensor(rng.dirichlet(np.ones(6), 4), dtype=torch.float32)
        tokens = [0, *(int(rng.choice(6)) for _ in range(3))]
        logits = torch.tensor(rng.normal(size=(4, 6)), dtype=torch.float32)
        sampler = Sampler(SamplingParams(temperature=0.9, top_p=0.95, seed=seed), [], 6)
        one, other = (rule(chain(tokens, probs=q), logits, sampler) for rule in (verify, rejection))
        assert (one.path, one.next_token) == (other.path, other.next_token)


@every_verifier
def test_draft_equal_to_the_target_is_accepted_whole(verifier):
    verify = VERIFIERS[verifier](Shift())
    for seed in range(50):
        tree = chain([0, 1, 2], probs=torch.stack([P, P, torch.zeros(3)]))
        verdict = verify(tree, P.log().repeat(3, 1), sampler_of(seed))
        assert verdict.path == [0, 1, 2]
        assert verdict.next_token == sampler_of(seed).draw(P.log(), [1, 2])  # from p: there is no q


@every_verifier
def test_empty_residual_samples_from_the_target(verifier):
    """All three alike, and a token that none of them has: it is rejected, and nothing is NaN."""
    p = torch.tensor([0.7, 0.3, 0.0])
    for seed in range(20):
        verdict = VERIFIERS[verifier](Shift())(
            tree_of(2, p), p.log().repeat(2, 1), sampler_of(seed)
        )
        assert verdict.path == [0]
        assert verdict.next_token in (0, 1)


@every_verifier
def test_draft_token_with_tiny_q(verifier):
    """Its ratio is infinite: it is kept, for the target holds it likely."""
    q = torch.tensor([1.0, 0.0, 0.0])
    verdict = VERIFIERS[verifier](Shift(eta=0.5))(
        tree_of(1, q), P.log().repeat(2, 1), sampler_of(1)
    )
    assert verdict.path == [0, 1]


@every_verifier
def test_filtered_tokens_are_never_emitted(verifier):
    verify = VERIFIERS[verifier](Shift(eta=50.0))
    for seed in range(100):
        sampler = sampler_of(seed, top_k=1)
        verdict = verify(tree_of(1, Q), P.log().repeat(2, 1), sampler)
        assert (verdict.path, verdict.next_token) == ([0], 0)


@every_verifier
def test_trees_without_q_are_walked(verifier):
    tree, sampler = from_paths(0, [[1, 2], [0]]), sampler_of(3)
    logits = P.log().repeat(len(tree), 1)
    assert VERIFIERS[verifier](Shift())(tree, logits, sampler) == walk(tree, logits, sampler)


def test_a_callers_process_sees_every_token_once_in_order():
    seen = []

    def process(tokens, logits):
        seen.append(list(tokens))
        return logits

    sampler = Sampler(SamplingParams(temperature=1.0, seed=1), [9], 3, process=process)
    tree = chain([0, 1, 1, 1], probs=torch.tensor([0.0, 1.0, 0.0]).repeat(4, 1))
    logits = torch.tensor([0.0, 9.0, 0.0]).repeat(4, 1)
    verdict = rapid(Shift())(tree, logits, sampler)
    assert seen == [[9, *[1] * count] for count in range(len(verdict.path))]


# Temperature 0


@every_verifier
@pytest.mark.parametrize("eta", [0.0, 10.0, 50.0])
def test_at_temperature_zero_it_is_greedy(verifier, eta):
    rng = np.random.default_rng(5)
    for _ in range(50):
        q = torch.tensor(rng.dirichlet(np.ones(6), 4), dtype=torch.float32)
        logits = torch.tensor(rng.normal(size=(4, 6)), dtype=torch.float32)
        tree = chain([0, *logits.argmax(-1)[:2].tolist(), 5], probs=q)
        sampler = Sampler(SamplingParams(), [], 6)
        verdict = VERIFIERS[verifier](Shift(eta=eta))(tree, logits, sampler)
        assert verdict == walk(tree, logits, sampler)
        assert verdict.promise is Promise.SAME_TEXT


@pytest.mark.parametrize(("temperature", "flips"), [(0.1, True), (0.05, True), (0.01, False)])
@pytest.mark.parametrize(("eta", "q"), [(10.0, [0.1, 0.9]), (20.0, [0.0, 1.0])])
def test_the_shift_vanishes_as_the_temperature_falls(temperature, flips, eta, q):
    """A gap of 0.8 in logits against a drafter that holds the other token likely: it gives way
    below about 2 eta T; below eta T where the target's token is the drafter's tail, and stays."""
    p = (torch.tensor([0.8, 0.0]) / temperature).softmax(-1)
    shifted = Shift(eta=eta)(p, torch.tensor(q))
    assert (shifted[1] > shifted[0]) == flips


@pytest.mark.parametrize(("margin", "kept"), [(0.0, 0), (0.3, 0), (2.0, 2)])
def test_soft_greedy_accepts_tokens_within_the_margin(margin, kept):
    """Sure of token 1, half a logit behind token 0; the last token is the target's own."""
    q = torch.tensor([0.02, 0.96, 0.02])
    tree = chain([2, 1, 1], probs=torch.stack([q, q, torch.zeros(3)]))
    logits = torch.tensor([1.0, 0.5, -3.0]).repeat(3, 1)
    verdict = rapid(Shift(margin=margin))(tree, logits, Sampler(SamplingParams(), [], 3))
    assert len(verdict.path) - 1 == kept
    assert verdict.next_token == 0
    assert verdict.promise.lossless == (margin == 0)


def test_soft_greedy_with_a_callers_process():
    q = torch.tensor([0.02, 0.96, 0.02])
    tree = chain([2, 1, 1], probs=torch.stack([q, q, torch.zeros(3)]))
    logits = torch.tensor([1.0, 0.5, -3.0]).repeat(3, 1)
    seen = []
    sampler = Sampler(SamplingParams(), [], 3, process=lambda t, z: seen.append(list(t)) or z)
    assert rapid(Shift(margin=2.0))(tree, logits, sampler).path == [0, 1, 2]
    assert seen == [[], [1], [1, 1]]


@pytest.mark.parametrize("wrong", [{"eta": -1}, {"eta": float("nan")}, {"tail": "both"},
                                   {"margin": -0.1}])  # fmt: skip
def test_invalid_shifts_are_refused(wrong):
    with pytest.raises(InputError):
        Shift(**wrong)


# Of a request


def test_a_request_may_have_a_shift_of_its_own():
    """In one batch with others, which keep the engine's."""
    chains = Chains(gamma=4, sampled=True)
    params = SamplingParams(temperature=1.0, max_tokens=40, seed=3, ignore_eos=True)

    def answers(verify, *shifts):
        engine = tiny_engine(draft_model=tiny_draft_model(noise=0.6), verify=verify, chains=chains)
        requests = [Request([40, 41, 42], params, "sd", shift=shift) for shift in shifts]
        return [result.token_ids for result in engine.generate(requests)]

    weak, strong = Shift(eta=0.0), Shift(eta=20.0)
    expected = [answers(rapid(shift), None)[0] for shift in (weak, strong)]
    assert expected[0] != expected[1]
    assert answers(rapid(weak), None, strong) == expected
    with pytest.raises(InputError, match="a shift needs an engine with the verifier rapid"):
        answers(walk, strong)
