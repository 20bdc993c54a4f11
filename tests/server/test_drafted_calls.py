"""Tool calls and JSON schema answers with drafting equal those of plain decoding, streamed or not.

The slow part is 320 calls of the default model; every one is also answered with a pool that has
answers to the same and other calls.
"""

import json
from collections import Counter
from itertools import islice, product

import httpx
import pytest
from daily import daily
from serving import serving
from tiny import tiny_engine

import graft
from graft.match.pool import Pools

CITIES = ("Oslo", "Lima", "Bern", "Quito", "Rome", "Cairo", "Hanoi", "Tunis", "Riga", "Accra")
QUESTIONS = (
    "What is the weather in {}?",
    "Book a table for two in {} tonight.",
    "Is it raining in {}, and how warm is it there?",
    "Find me a hotel in {} for three nights.",
)


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SHORT = {"type": "string", "maxLength": 12}
TOOLS = [
    tool("weather", city=SHORT, unit={"enum": ["celsius", "fahrenheit"]}),
    tool("book_table", city=SHORT, guests={"type": "integer", "minimum": 1, "maximum": 20}),
]
SCHEMA = TOOLS[0]["function"]["parameters"] | {"additionalProperties": False}
FORMS = {
    "required": {"tools": TOOLS, "tool_choice": "required"},
    "named": {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "book_table"}},
    },
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    },
    "free": {"tools": TOOLS},
}
SAMPLING = ({"temperature": 0}, {"temperature": 0.8, "seed": 3})


def cases():
    """Every question with every form, greedy and seeded: 320."""
    for city, question, form, sampling in product(CITIES, QUESTIONS, FORMS, SAMPLING):
        messages = [{"role": "user", "content": question.format(city)}]
        yield {"messages": messages, "max_tokens": 48, **FORMS[form], **sampling}


def answer(client, body, *, stream, **more):
    """What a client gets of a call, and the accepted draft tokens by source."""
    body = {**body, **more, "stream": stream}
    if not stream:
        whole = client.post("/v1/chat/completions", json=body).json()
        [choice] = whole["choices"]
        message = choice["message"]
        calls = [each["function"] for each in message.get("tool_calls") or []]
        got = message.get("content") or "", calls, choice["finish_reason"]
        return got, whole["metrics"]["accepted_by_source"]
    text, calls, reason, accepted = "", [], None, {}
    with client.stream("POST", "/v1/chat/completions", json=body) as lines:
        for line in lines.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            accepted = chunk.get("metrics", {}).get("accepted_by_source", accepted)
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                calls += [each["function"] for each in choice["delta"].get("tool_calls") or []]
                reason = choice["finish_reason"] or reason
    return (text, calls, reason), accepted


def different(engine, bodies):
    """The calls that drafting changed, and all accepted draft tokens by source."""
    wrong, accepted = [], Counter()
    with serving(engine) as running, httpx.Client(base_url=running.url, timeout=600) as client:
        for number, body in enumerate(bodies):
            plain, _ = answer(client, body, stream=False, speculative={"enabled": False})
            for stream in (number % 2 == 0, number % 2 == 1):  # the second has a warm pool
                drafted, sources = answer(client, body, stream=stream)
                accepted.update(sources)
                if drafted != plain:
                    wrong.append((body, plain, drafted))
    return wrong, accepted


def test_calls_of_a_tiny_model_are_those_of_plain_decoding():
    bodies = list(islice(cases(), 0, None, 67))
    assert {body["temperature"] for body in bodies} == {0, 0.8}
    wrong, accepted = different(tiny_engine(pools=Pools()), bodies)
    assert not wrong
    assert accepted["pool"] + accepted["both"] > 10


@pytest.mark.parametrize("model", daily(["smollm2-135m"]))
def test_320_calls_are_those_of_plain_decoding(model):
    engine = graft.load(model, dtype="fp32", max_batch=1, pool=True)
    bodies = list(cases())
    assert len(bodies) == 320
    wrong, accepted = different(engine, bodies)
    assert not wrong
    assert accepted["pool"] + accepted["both"] > 1000
