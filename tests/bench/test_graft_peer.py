"""Graft's worker without its pipes: shortened prompts, and likelihoods."""

import sys
from types import SimpleNamespace

import pytest
from tiny import tiny_engine

from graft.bench import short_prompts, worker
from graft.decode.likelihood import log_likelihood

PROMPT = [*range(10, 60)]
SHORT = PROMPT[:3] + PROMPT[-5:]


@pytest.fixture
def answers(monkeypatch):
    monkeypatch.syspath_prepend(str(worker.PEERS))
    monkeypatch.delitem(sys.modules, "graft_peer", raising=False)
    import graft_peer

    engine = tiny_engine()
    return graft_peer.Answers(engine), engine


def request(method, prompts, **more):
    asked = {"prompts": prompts, "max_tokens": 12, "end_tokens": [], "method": method}
    return {**asked, "temperature": 0.0, "seeds": [1, 2][: len(prompts)], **more}


@pytest.mark.parametrize("method", ["rag", "rag+copy"])
@pytest.mark.parametrize("count", [1, 2])
def test_rag_answers_the_shortened_prompt(answers, monkeypatch, method, count):
    ask, engine = answers
    seen = []

    def shorten(tokens, spans):
        seen.append((list(tokens), list(spans)))
        return SimpleNamespace(tokens=SHORT)

    monkeypatch.setattr(short_prompts, "shortener", lambda tokenizer: shorten)
    told = ask(request(method, [PROMPT] * count))
    expected = ask(request("plain", [SHORT] * count))
    assert told["token_ids"] == expected["token_ids"]
    assert told["token_ids"] != ask(request("plain", [PROMPT] * count))["token_ids"]
    assert told["read_tokens"] == count * len(SHORT)
    assert seen == [(PROMPT, [(0, len(PROMPT))])] * count
    assert (told["drafted"] > 0) == (method == "rag+copy")


def test_gold_is_weighed_behind_the_prompt_that_is_read(answers, monkeypatch):
    ask, engine = answers
    monkeypatch.setattr(
        short_prompts,
        "shortener",
        lambda tokenizer: lambda tokens, spans: SimpleNamespace(tokens=SHORT),
    )
    gold = [5, 6, 7]
    for method, read in (("plain", PROMPT), ("rag", SHORT)):
        [found] = ask(request(method, [PROMPT], gold=[gold]))["log_likelihoods"]
        assert found == pytest.approx(sum(log_likelihood(engine, read, gold)))


@pytest.mark.parametrize(("method", "known"), [("plain", True), ("copy", True), ("copy", False)])
def test_known_prompts_are_read_before_they_are_timed(answers, method, known):
    """A draft model reads along with the first tokens."""
    ask, engine = answers
    engine.model.prefixes.use(max_rows=4096)
    ask = type(ask)(engine, prompts_are_known=known)
    begun, taken = [], engine._begin
    engine._begin = lambda request: begun.append(request.params.max_tokens) or taken(request)
    prompts = [PROMPT * 11, PROMPT[::-1] * 11]
    told = ask(request(method, prompts))
    rounds = 1 if method == "plain" else 3 + 2 * len(prompts[0]) // engine.model.chunk
    assert begun == [*([rounds] * 2 if known else []), 12, 12]
    assert [len(tokens) for tokens in told["token_ids"]] == [12, 12]


@pytest.mark.parametrize(("places", "queued"), [(2, False), (1, True)])
def test_all_of_the_time_of_a_queue_is_decoding(answers, places, queued):
    import graft_peer

    ask = graft_peer.Answers(tiny_engine(max_batch=places))
    told = ask(request("plain", [PROMPT, PROMPT[5:]]))
    assert (told["prefill_seconds"] == 0) == queued
    assert (told["first_tokens"] == 0) == queued
    assert told["total_seconds"] > 0
    assert [len(tokens) for tokens in told["token_ids"]] == [12, 12]
