"""Chains for SGLang's requests; test_sglang_steps.py has them in its steps, kernels interpreted."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from graft.integrations.device_drafts import SEARCHED
from graft.integrations.sglang_chains import Chains
from graft.integrations.sglang_fields import NO_TEXTS, Texts

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY, MOST = 500, 7


@pytest.fixture
def chains(monkeypatch):
    monkeypatch.setenv("GRAFT_DOCUMENTS", "16")
    return Chains(4, 50, MOST, VOCABULARY, DEVICE)


def batch_of(*requests):
    places = torch.tensor([each.place for each in requests])
    return SimpleNamespace(
        reqs=requests, req_pool_indices_cpu=places, req_pool_indices=places.to(DEVICE)
    )


def request(name, place, prompt):
    return SimpleNamespace(rid=name, place=place, origin_input_ids=prompt, output_ids=[])


def follow(chains, batch, *tokens, prompts=False):
    rows = torch.tensor(tokens, device=DEVICE)[:, None]
    chains.follow(batch, rows, None, prompts=prompts)


def drafted(chains, batch, count):
    found = chains.draft(batch.req_pool_indices, count)
    assert (found[:, 0] == chains.newest(batch)).all()
    return found[:, 1:].tolist()


def test_prompts_and_texts_of_requests_at_any_place_are_copied(chains):
    batch = batch_of(request("a", 3, [1, 2, 3, 4]), request("b", 1, [5, 6]))
    texts = {"a": NO_TEXTS, "b": Texts(documents=[[7, 8, 9]], prediction=[20, 21])}
    chains.begin(batch, lambda each: texts[each.rid])
    follow(chains, batch, 2, 8)
    assert drafted(chains, batch, 2) == [[3, 4], [9, 0]]  # nothing goes on behind a document
    follow(chains, batch, 3, 20)
    assert drafted(chains, batch, 1) == [[4], [21]]


def test_ids_that_stand_for_images_are_not_drafted(chains):
    batch = batch_of(request("a", 0, [1, 2, 10**6 + 5, 3]))
    chains.begin(batch, lambda _: NO_TEXTS)
    follow(chains, batch, 2)
    assert drafted(chains, batch, 2) == [[0, 3]]


def test_rates_are_those_of_requests_that_were_there_before(chains):
    old, new = request("a", 0, [1, 2, 3, 1]), request("b", 1, [4, 5, 4])
    chains.begin(batch_of(old, new), lambda _: NO_TEXTS)
    follow(chains, batch_of(old, new), 2, 5, prompts=True)
    for tokens in ((3, 4), (1, 5)):
        follow(chains, batch_of(old, new), *tokens)
    assert chains.rates(batch_of(old)) == []
    assert len(chains.rates(batch_of(old, new))) == 1
    assert len(chains.rates(batch_of(old, new))) == 2
    moved = request("a", 2, old.origin_input_ids)
    assert len(chains.rates(batch_of(moved, new))) == 1
    other = request("c", 1, [7, 8])  # takes the place of one that copied
    chains.begin(batch_of(other), lambda _: NO_TEXTS)
    assert len(chains.rates(batch_of(moved, new, other))) == 0
    assert len(chains.rates(batch_of(other))) == 0


def test_plain_steps_search_now_and_then_and_drafts_always_have_what_is_newest(chains):
    searches, batch = [], batch_of(request("a", 0, [1, 2, 3, 4, 5, 6]))
    search = chains._drafts.search
    chains._drafts.search = lambda *given: searches.append(search(*given))
    chains.begin(batch, lambda _: NO_TEXTS)
    follow(chains, batch, 1, prompts=True)
    for token in (2, 3, 4):
        follow(chains, batch, token)
        assert drafted(chains, batch, 1) == [[token + 1]]
    assert len(searches) == 3
    for token in (1, 2, 3, 4, 5, 6):
        follow(chains, batch, token)
    assert len(searches) == 3 + 6 // SEARCHED
