"""What the server process does before it is ready."""

import pytest
from tiny import tiny_engine, tiny_network

from graft.errors import InputError
from graft.sampling_params import SamplingParams
from graft.server.run import EXAMPLE_SALT, answer_example


@pytest.mark.parametrize("head", [True, False])
def test_an_example_is_answered_with_every_kind_of_draft(monkeypatch, head):
    engine = tiny_engine(tiny_network(), max_batch=2)
    params, prompt, generate, asked = (
        SamplingParams(temperature=0.0, max_tokens=8),
        [5] * 9,
        None,
        [],
    )
    before = engine.generate(prompt, params).token_ids
    generate = engine.generate

    def answer(requests):
        asked.append(requests)
        if requests[0].draft and not head:
            raise InputError("no head")
        return [] if requests[0].draft else generate(requests)

    monkeypatch.setattr(engine, "generate", answer)
    answer_example(engine)
    assert [[each.draft for each in requests] for requests in asked] == [[None] * 2, ["head"] * 2]
    assert {each.cache_salt for requests in asked for each in requests} == {EXAMPLE_SALT}
    assert {each.params.temperature > 0 for each in asked[0]} == {True, False}
    assert generate(prompt, params).token_ids == before
