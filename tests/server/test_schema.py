"""Whatever fits the published schema, or does not, is answered without a server's error."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode
from serving import serving
from tiny import tiny_engine

ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/add_external_corpus"),
    ("POST", "/remove_external_corpus"),
    ("GET", "/list_external_corpora"),
    ("POST", "/v1/corpora"),
    ("GET", "/v1/corpora"),
    ("DELETE", "/v1/corpora/{corpus_id}"),
    ("POST", "/v1/documents/text"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/health"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("GET", "/server_info"),
]
OPEN = ("/health", "/version", "/metrics")
POLITE = {"timeout": 30}
KEY = {"Authorization": "Bearer first"}


@pytest.fixture(scope="module")
def server():
    with serving(
        tiny_engine(max_batch=4), timeout=0.3, max_body=100_000, api_keys=("first", "second")
    ) as running:
        yield running


def test_every_route_of_the_schema_is_fuzzed(server):
    paths = server.app.openapi()["paths"]
    known = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert known == set(ROUTES)


def send_all(server, route, mode, headers, check):
    """Send what schemathesis makes up for a route, and look at every answer."""
    method, path = route
    schema = schemathesis.openapi.from_dict(server.app.openapi())
    strategy = schema[path][method].as_strategy(generation_mode=mode)

    @given(case=strategy)
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def send(case):
        check(case.call(base_url=server.url, headers=headers, **POLITE))

    send()


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route[1])
def test_no_request_causes_an_internal_error(server, route, mode):
    def check(answer):
        assert answer.status_code < 500 or answer.status_code == 504, answer.text
        assert answer.status_code != 401
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert "Traceback" not in answer.text

    if route[0] != "POST" and mode is GenerationMode.NEGATIVE:
        pytest.skip("nothing to send wrongly")
    send_all(server, route, mode, KEY, check)


@pytest.mark.slow
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer third"}], ids=["none", "wrong"])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route[1])
def test_without_a_key_every_request_gets_401(server, route, headers):
    def check(answer):
        assert answer.status_code == (200 if route[1] in OPEN else 401)

    send_all(server, route, GenerationMode.POSITIVE, headers, check)
