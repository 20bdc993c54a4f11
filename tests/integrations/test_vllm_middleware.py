"""The middleware of vLLM's server: what a client gets, and what the server reads."""

import asyncio
import json

import pytest

from graft.integrations.vllm_fields import Middleware, read_fields


def answer_of(body, *, pieces=1, path="/v1/chat/completions"):
    """What a client of the middleware gets: its refusal, or the body that the server read."""
    size = max(1, -(-len(body) // pieces))
    parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    waiting = [
        {"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts
    ]
    sent = []

    async def receive():
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    async def server(scope, receive, send):
        read = b""
        while True:
            message = await receive()
            read += message["body"]
            if not message["more_body"]:
                break
        assert dict(scope["headers"])[b"content-length"] == str(len(read)).encode()
        sent.append(read)

    headers = [(b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    asyncio.run(Middleware(server)(scope, receive, send))
    return sent


def read_by_server(content):
    [body] = answer_of(json.dumps(content).encode(), pieces=3)
    read = json.loads(body)
    assert isinstance(read["vllm_xargs"]["graft"], str)  # vLLM takes no objects there
    return read, read_fields(read["vllm_xargs"]["graft"])


@pytest.mark.parametrize("written", [dict, json.dumps])
def test_the_field_reaches_the_worker(written):
    given = {"documents": ["a", [1, 2]], "prediction": "b", "tenant": "t"}
    read, fields = read_by_server({"model": "m", "vllm_xargs": {"graft": written(given), "n": 1}})
    assert (read["model"], read["vllm_xargs"]["n"]) == ("m", 1)
    assert (fields.documents, fields.prediction, fields.tenant) == (("a", [1, 2]), "b", "t")


def test_a_cache_salt_separates_tenants_whatever_else_is_sent():
    tenants = [
        read_by_server({"cache_salt": salt, **extra})[1].tenant
        for salt in ("red", "blue")
        for extra in ({}, {"vllm_xargs": {"graft": {"tenant": "red"}}}, {"vllm_xargs": None})
    ]
    assert tenants[0] == tenants[2]
    assert tenants[3] == tenants[5]
    assert len(set(tenants)) == 4


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"graft": {"documents": "a"}}, "vllm_xargs: graft.documents must be a list"),
        ({"graft": "{"}, "vllm_xargs: graft is not JSON"),
        ({"documents": ["a"]}, "vllm_xargs: documents is no field here; send graft"),
    ],
)
def test_a_bad_field_gets_status_400(extra, message):
    start, body = answer_of(json.dumps({"vllm_xargs": extra}).encode(), pieces=3)
    assert start["status"] == 400
    error = json.loads(body["body"])["error"]
    assert error["message"].startswith(message)
    assert error["param"] == "vllm_xargs"


@pytest.mark.parametrize(
    "body",
    [
        b'{"vllm_xargs": {"other": 1}}',
        b'{"vllm_xargs": 5}',
        b'["vllm_xargs"]',
        b'{"documents": [{"text": "a"}]}',
        b'{"cache_salt": null}',
        b"vllm_xargs",
        b"",
    ],
)
def test_other_requests_reach_the_server_unchanged(body):
    assert answer_of(body, pieces=2) == [body]


def test_other_routes_are_not_read():
    body = b'{"vllm_xargs": {"graft": 5}}'
    assert answer_of(body, path="/v1/embeddings") == [body]
