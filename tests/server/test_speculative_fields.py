"""`speculative`: the numbers of methods that a client sends with a request."""

import httpx
import pytest
from serving import serving
from tiny import tiny_draft_model, tiny_engine

from graft.assemble.loading import make_verifier
from graft.draft.models.chains import Chains
from graft.draft.options import Casd, Rasd
from graft.server.method_numbers import method_numbers
from graft.server.schema import Speculative
from graft.verify.rapid import Shift

CHAT = [{"role": "user", "content": "the end and the answer and the end"}]
GREEDY = {"messages": CHAT, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
SAMPLED = {**GREEDY, "temperature": 1.0, "seed": 3, "max_tokens": 60}


@pytest.fixture(scope="module")
def http():
    engine = tiny_engine(draft_model=tiny_draft_model(), chains=Chains(gamma=10))
    with serving(engine) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def shifting():
    chains, verify = Chains(gamma=4, sampled=True), make_verifier("rapid", Shift(eta=0.0))
    engine = tiny_engine(
        draft_model=tiny_draft_model(noise=0.6), verify=verify, chains=chains, default_draft="sd"
    )
    with serving(engine) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        yield client


def answer(http, body, **speculative):
    return http.post("/v1/chat/completions", json={**body, "speculative": speculative})


def counts(response):
    assert response.status_code == 200, response.text
    return response.json()["metrics"]["speculative_decoding"]


def text(response):
    return response.json()["choices"][0]["message"]["content"]


def test_numbers_limit_the_drafts_and_keep_the_text(http):
    plain = text(answer(http, GREEDY, enabled=False, confidence=0.5, eta=3))
    drafted = {}
    for method, numbers in (
        ("sd", {}),
        ("sd", {"num_tokens": 4}),
        ("sd", {"confidence": 1.0}),
        ("copy", {"casd_matches": 1, "casd_length": 3}),
        ("casd", {"casd_length": 1}),
        ("rasd-pld", {"rasd_top_k": 1, "rasd_branches": 1, "rasd_length": 1}),
    ):
        given = answer(http, GREEDY, method=method, **numbers)
        drafted[method, *numbers] = counts(given)["num_spec_tokens"]
        assert text(given) == plain
    assert drafted["sd",] == 10
    assert drafted["sd", "num_tokens"] == 4
    assert drafted["sd", "confidence"] == 1
    assert drafted["copy", "casd_matches", "casd_length"] == 3


def test_a_shift_of_the_client_changes_what_is_accepted(shifting):
    none, own, other = (
        answer(shifting, SAMPLED, **fields)
        for fields in ({}, {"eta": 20}, {"eta": 20, "tail": "target"})
    )
    rates = [counts(each)["draft_acceptance_rate"] for each in (none, own, other)]
    assert rates[0] < rates[1]
    assert text(none) != text(own)
    assert counts(own)["lossless"] is False
    assert text(answer(shifting, GREEDY, margin=50)) != text(answer(shifting, GREEDY))


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"eta": 5}, "speculative.eta", "eta needs a server with --verifier rapid or rapid-phat"),
        ({"gamma": 4}, "speculative.gamma", "(--gamma); send num_tokens"),
        ({"verifier": "rapid"}, "speculative.verifier", "(--verifier); send eta, tail or margin"),
        ({"retriever": "bm25"}, "speculative.retriever", "(--retriever); send retrieved"),
        ({"method": "copy", "confidence": 0.5}, "speculative", "with a model's chain: sd, rapid"),
        ({"method": "sd", "retrieved": 512}, "speculative", "from retrieved passages: rapid"),
        ({"method": "casd", "rasd_top_k": 3}, "speculative", "with RASD's branches: rasd-pld"),
        ({"method": "sd", "casd_length": 3}, "speculative", "with CASD's copies: copy, casd"),
        ({"method": "sd", "retrieved": 5}, "speculative", "retrieved must be a number of tokens"),
        ({"confidence": 2}, "speculative.confidence", "less than or equal to 1"),
        ({"tail": "both"}, "speculative.tail", "'drafter' or 'target'"),
        ({"rasd_top_k": 11}, "speculative.rasd_top_k", "less than or equal to 10"),
    ],
)
def test_numbers_that_cannot_be_used_are_errors_in_one_line(http, fields, param, says):
    given = answer(http, GREEDY, **fields)
    error = given.json()["error"]
    assert (given.status_code, error["param"]) == (400, param)
    assert says in error["message"]
    assert "\n" not in error["message"]


def test_a_shift_needs_a_chain_with_q(shifting):
    error = answer(shifting, SAMPLED, method="copy", eta=5).json()["error"]
    assert (
        error["message"]
        == "eta needs a method of sd, rapid, rapid-up, and no corpora to draft from"
    )


def test_fields_that_are_not_sent_have_the_servers_values():
    engine = tiny_engine(draft_model=tiny_draft_model())
    drafters = engine.drafters.resources
    sent = Speculative(rasd_top_k=3, casd_length=4, eta=2)
    numbers = method_numbers(sent, "sd", drafters, Shift(eta=1, tail="target"))
    assert numbers["rasd"] == Rasd(top_k=3)
    assert numbers["casd"] == Casd(length=4)
    assert numbers["shift"] == Shift(eta=2, tail="target")
    assert method_numbers(Speculative(), "sd", drafters, Shift()) == dict.fromkeys(numbers)
