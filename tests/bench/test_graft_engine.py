"""Graft's engine as a backend: batches, queues, prefilled prompts, likelihoods."""

import pytest
from tiny import tiny_engine

from graft.bench.graft_engine import GraftEngine
from graft.bench.likelihood import log_likelihood
from graft.decode.prepared_request import as_prepared

PROMPT = [*range(10, 60)]


def request(method, prompts, **more):
    given = {"prompts": prompts, "max_tokens": 12, "end_tokens": [], "method": method}
    return {**given, "temperature": 0.0, "seeds": [1, 2][: len(prompts)], **more}


def test_one_prompt_and_a_batch_have_the_same_outputs():
    backend = GraftEngine(tiny_engine())
    other = PROMPT[::-1]
    batch = backend.ask(request("copy", [PROMPT, other]))
    alone = [backend.ask(request("plain", [prompt])) for prompt in (PROMPT, other)]
    assert batch["token_ids"] == [each["token_ids"][0] for each in alone]
    assert batch["drafted"] > 0
    assert alone[0]["drafted"] == 0
    assert alone[0]["steps"] == 11
    assert 0 < alone[0]["prefill_seconds"] <= alone[0]["total_seconds"]


def test_likelihood_of_gold_is_that_of_the_whole_answer():
    engine = tiny_engine()
    [found] = GraftEngine(engine).ask(request("plain", [PROMPT], gold=[[5, 6]]))["log_likelihoods"]
    assert found == pytest.approx(sum(log_likelihood(engine, PROMPT, [5, 6])))


@pytest.mark.parametrize(("method", "first"), [("plain", True), ("copy", True), ("copy", False)])
def test_prompts_are_prefilled_before_they_are_timed(method, first):
    engine = tiny_engine()
    engine.model.prefixes.use(max_rows=4096)
    begun, submit = [], engine.submit

    def submitted(request, **options):
        begun.append(as_prepared(request).request.params.max_tokens)
        return submit(request, **options)

    engine.submit = submitted
    prompts = [PROMPT * 11, PROMPT[::-1] * 11]
    found = GraftEngine(engine, prefill_first=first).ask(request(method, prompts))
    steps = 1 if method == "plain" else 3 + 2 * len(prompts[0]) // engine.model.chunk
    assert begun == [*([steps] * 2 if first else []), 12, 12]
    assert [len(tokens) for tokens in found["token_ids"]] == [12, 12]


@pytest.mark.parametrize(("max_batch", "queued"), [(2, False), (1, True)])
def test_all_of_the_time_of_a_queue_is_decoding(max_batch, queued):
    backend = GraftEngine(tiny_engine(max_batch=max_batch))
    found = backend.ask(request("plain", [PROMPT, PROMPT[5:]]))
    assert (found["prefill_seconds"] == 0) == queued
    assert (found["first_tokens"] == 0) == queued
    assert [len(tokens) for tokens in found["token_ids"]] == [12, 12]
