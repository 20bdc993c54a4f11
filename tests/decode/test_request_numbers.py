"""Numbers of the methods that a request sets for itself: they limit and shape its drafts, and never
change the text."""

from dataclasses import replace

import numpy as np
import pytest
from daily import daily
from late import Late
from lossless_bench import Bench
from short_prompts import ends_only
from tiny import tiny_draft_model, tiny_engine, tiny_network
from tiny_heads import tiny_head

from graft.assemble.drafters import make_drafter
from graft.assemble.loading import make_verifier
from graft.assemble.networks import triforce
from graft.assemble.resources import DraftResources
from graft.decode.request import Request
from graft.draft.drafter import Budget, DraftContext
from graft.draft.heads.growth import LaunchedGrowth
from graft.draft.models.chains import Chains
from graft.draft.options import Casd, DraftOptions, Rasd
from graft.draft.short_context.kv_selection import Chunks
from graft.errors import InputError
from graft.models.language_model import LanguageModel
from graft.sampling import SamplingParams
from graft.verify.rapid import Shift

LONG = [int(token) for token in np.random.default_rng(5).integers(20, 99, 1200)]
SHORT = LONG[:60]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, seed=3)
FIXED = Chains(gamma=10)
RASD, CASD = Rasd(top_k=2, branches=2, length=3), Casd(matches=4, length=3)


@pytest.fixture(scope="module")
def bench():
    target = tiny_network()
    return Bench(
        draft_model=tiny_draft_model(),
        heads=[tiny_head("eagle2", target)],
        shorten=ends_only,
        chains=FIXED,
    )


NUMBERS = [
    ("sd", {"draft_tokens": 3}),
    ("sd", {"confidence": 0.9}),
    ("rapid", {"draft_tokens": 4, "confidence": 0.5, "retrieved": 128}),
    ("rasd-pld", {"rasd": RASD}),
    ("rasd-pld", {"rasd": Rasd(top_k=1, requery=False), "draft_tokens": 5}),
    ("casd", {"casd": CASD, "draft_tokens": 9}),
    ("copy", {"casd": CASD}),
    ("sd-tree", {"draft_tokens": 2}),
    ("eagle2", {"draft_tokens": 3}),
    ("head", {"draft_tokens": 1}),
    ("auto", {"draft_tokens": 2}),
    ("magicdec", {"draft_tokens": 1, "confidence": 0.3}),
    ("triforce", {"draft_tokens": 2, "casd": CASD}),
]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("draft", "numbers"), daily(NUMBERS, *NUMBERS[1:4], NUMBERS[5], NUMBERS[8])
)
def test_numbers_never_change_the_text(bench, draft, numbers, params):
    prompt = SHORT if draft in ("sd", "sd-tree") else LONG
    result = bench.check(prompt, params, draft, **numbers)
    assert 0 < result.stats.num_draft_tokens
    assert max(result.stats.per_step_drafted) <= numbers.get("draft_tokens", 91)


@pytest.mark.parametrize("draft", ["sd", "rapid", "magicdec"])
def test_the_draft_model_runs_no_further_than_the_draft_tokens(draft, monkeypatch):
    """One forward for each draft token, a few of the prefill, and in magicdec the step's own."""
    model = None if draft == "magicdec" else tiny_draft_model(cost=0.05)
    engine = tiny_engine(draft_model=model, shorten=ends_only, chains=FIXED)
    drafting, score, seen = model.model if model else engine.model, LanguageModel.score_all, []

    def counted(self, *given, **options):
        seen.append(self)
        return score(self, *given, **options)

    monkeypatch.setattr(LanguageModel, "score_all", counted)
    forwards = {}
    for limit in (None, 2):
        seen.clear()
        result = engine.generate(Request(LONG, GREEDY, draft, draft_tokens=limit))
        forwards[limit] = seen.count(drafting) / result.stats.steps - (model is None)
        assert max(result.stats.per_step_drafted) == (limit or FIXED.gamma)
    assert forwards[2] < 3 < forwards[None]


def test_a_head_grows_no_deeper_than_the_draft_tokens(bench, monkeypatch):
    depths, begin = set(), LaunchedGrowth.begin

    def watched(self, inputs, beam):
        depths.add(beam.depth)
        return begin(self, inputs, beam)

    monkeypatch.setattr(LaunchedGrowth, "begin", watched)
    for limit, expected in ((None, {6}), (3, {3})):
        depths.clear()
        bench.engine.generate(Request(SHORT, GREEDY, "eagle2", draft_tokens=limit))
        assert depths == expected


@pytest.mark.parametrize("wrap", [lambda forward: forward, Late], ids=["synchronous", "late"])
def test_requests_of_a_batch_keep_their_own_numbers(wrap):
    engine = tiny_engine(draft_model=tiny_draft_model(wrap=wrap), chains=FIXED)
    numbers = [{}, {"draft_tokens": 2}, {"draft_tokens": 0}, {"confidence": 1.0}]
    for given in (numbers, numbers[:3]):
        results = engine.generate([Request(SHORT, GREEDY, "sd", **each) for each in given])
        assert all(each.token_ids == results[0].token_ids for each in results)
        drafted = [max(each.stats.per_step_drafted) for each in results]
        assert drafted == [10, 2, 0, 1][: len(given)]


def test_hierarchical_drafts_keep_to_the_requests_numbers(bench):
    drafters = bench.engine.drafters
    drafters["small triforce"] = triforce(drafters.resources, Chunks(budget=64, size=8))
    numbers = [{}, {"draft_tokens": 0}, {"draft_tokens": 2}]
    results = bench.engine.generate(
        [Request(LONG, GREEDY, "small triforce", **each) for each in numbers]
    )
    assert [each.token_ids for each in results] == [results[0].token_ids] * 3
    assert [max(each.stats.per_step_drafted) for each in results] == [FIXED.gamma, 0, 2]


def test_eta_of_a_request_changes_what_is_accepted():
    chains, verify = Chains(gamma=4, sampled=True), make_verifier("rapid", Shift(eta=0.0))
    engine = tiny_engine(draft_model=tiny_draft_model(noise=0.6), verify=verify, chains=chains)
    params = replace(SAMPLED, max_tokens=80)
    rates = [
        engine.generate(Request(SHORT, params, "sd", shift=shift)).stats.tokens_per_step
        for shift in (None, Shift(eta=5.0))
    ]
    assert rates[0] < rates[1]


def test_a_request_retrieves_within_its_own_budget():
    budgets = []

    def shorten(tokens, quotable, budget):
        budgets.append(budget)
        return list(tokens[-(budget or 100) :])

    engine = tiny_engine(draft_model=tiny_draft_model(), shorten=shorten, chains=FIXED)
    for retrieved in (None, 300):
        engine.generate(Request(LONG, GREEDY, "rapid", retrieved=retrieved))
    assert [each for each in budgets if each] == [300]


@pytest.mark.parametrize(
    ("draft", "options", "shape"),
    [
        ("rasd-pld", DraftOptions(rasd=Rasd(branches=3, length=2)), (3, 2)),
        ("rasd-pld", DraftOptions(), (4, 8)),
        ("casd", DraftOptions(casd=Casd(matches=5, length=4)), (5, 4)),
        ("casd", DraftOptions(), (2, 10)),
        ("copy", DraftOptions(casd=Casd(matches=1, length=32)), (1, 32)),
    ],
)
def test_branches_are_as_many_and_as_long_as_the_request_says(draft, options, shape):
    prompt = [t for n in range(6) for t in (60, 61, 70 + n, *range(80, 110), 110 + n)]
    context = DraftContext(0, prompt, [(0, len(prompt))], tokens=[60, 61], options=options)
    drafter = make_drafter(draft, DraftResources(tiny_draft_model()))
    copier = drafter if draft == "copy" else drafter.drafters[0]
    copier.start(context)
    (tree,) = copier.propose([context], Budget(91, np.ones(92)))
    assert (int((tree.parents == 0).sum()), int(tree.depths.max())) == shape


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"draft": "copy", "confidence": 0.5}, "confidence needs a draft with a model's chain: sd"),
        ({"draft": "sd", "retrieved": 512}, "retrieved needs a draft from retrieved passages"),
        ({"draft": "casd", "rasd": Rasd()}, "rasd needs a draft with RASD's branches: rasd-pld"),
        ({"draft": "auto", "casd": Casd()}, "casd needs a draft with CASD's copies: copy, casd"),
        ({"draft": "sd", "confidence": 1.5}, "confidence must be between 0 and 1, not 1.5"),
        ({"draft": "rapid", "retrieved": 3}, "retrieved must be a number of tokens from 64 on"),
        ({"draft": "sd", "draft_tokens": -1}, "draft_tokens must be at least 0, not -1"),
    ],
)
def test_numbers_that_cannot_be_used_are_refused(bench, numbers, message):
    with pytest.raises(InputError, match=message):
        bench.engine.generate(Request(SHORT, GREEDY, **numbers))
