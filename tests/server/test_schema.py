"""Whatever fits the published schema, or does not, is answered without a server's error."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode
from serving import serving
from tiny import tiny_engine

ROUTES = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/add_external_corpus",
    "/remove_external_corpus",
]
POLITE = {"timeout": 30}


@pytest.fixture(scope="module")
def server():
    with serving(tiny_engine(max_batch=4), timeout=0.3, max_body=100_000) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", ROUTES)
def test_nothing_that_is_sent_breaks_the_server(server, route, mode):
    schema = schemathesis.openapi.from_dict(server.app.openapi())
    strategy = schema[route]["POST"].as_strategy(generation_mode=mode)

    @given(case=strategy)
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def send(case):
        answer = case.call(base_url=server.url, **POLITE)
        assert answer.status_code < 500 or answer.status_code == 504, answer.text
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    send()
