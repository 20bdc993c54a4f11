"""The routes, over a real connection to a tiny model."""

import contextlib
import json
import logging
import re
import signal
import socket
import time
from dataclasses import replace

import httpx
import pytest
from serving import Held, serving
from tiny import tiny_engine

from graft.match.pool import Pools
from graft.models.arena import BLOCK
from graft.sampling import SamplingParams
from graft.server import sse
from graft.verify.verdict import Promise
from graft.verify.walk import walk

CHAT = [{"role": "user", "content": "the end and the answer"}]
LONG = {
    "messages": CHAT,
    "max_tokens": 1900,
    "ignore_eos": True,
    "temperature": 0,
    "speculative": {"enabled": False},
}
JSON = {"Content-Type": "application/json"}
TEXT = "the end and the answer in an inn on the river where another one was then "


@pytest.fixture(scope="module")
def server():
    engine = tiny_engine(max_batch=4)
    engine.model.prefixes.use(max_rows=20_000)
    with serving(engine) as running:
        yield running


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def chat(http, **fields):
    body = json.dumps({"messages": CHAT, "max_tokens": 20, **fields})  # NaN too, as Python's may
    return http.post("/v1/chat/completions", content=body, headers=JSON)


def events(lines):
    """The objects of a stream; `[DONE]` must be its last."""
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert found[-1] == "[DONE]"
    return [json.loads(each) for each in found[:-1]]


def settled(server):
    """Rows in use after a disconnect, which a server hears of a little later."""
    for _ in range(500):
        if not (rows := server.rows_in_use()):
            break
        time.sleep(0.01)
    return rows


def test_greedy_answers_equal_the_engines_streamed_or_not(server, http):
    params = SamplingParams(max_tokens=30)
    expected = server.engine.generate(CHAT, params)
    fields = {"temperature": 0, "max_tokens": 30}
    body = chat(http, **fields).json()
    assert body["choices"][0]["message"]["content"] == expected.text
    assert body["choices"][0]["finish_reason"] == expected.finish_reason
    assert body["usage"]["completion_tokens"] == len(expected.token_ids)
    streamed = events(
        chat(http, stream=True, stream_options={"include_usage": True}, **fields).text.splitlines()
    )
    deltas = [each["choices"][0]["delta"] for each in streamed if each["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == expected.text
    assert streamed[-1]["usage"] == body["usage"]
    assert streamed[-1]["metrics"]["speculative_decoding"].keys() >= {
        "mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram",
        "num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens",
    }  # fmt: skip
    assert streamed[-1]["metrics"]["speculative_decoding"]["lossless"] is True
    assert deltas[0]["role"] == "assistant"
    assert not any("role" in delta for delta in deltas[1:])


def test_the_same_seed_gives_the_same_answers_for_all_n(server, http):
    params = SamplingParams(temperature=0.9, top_k=40, min_p=0.01, seed=5, n=3, max_tokens=20)
    expected = [each.text for each in server.engine.generate(CHAT, params).choices]
    fields = {"temperature": 0.9, "top_k": 40, "min_p": 0.01, "seed": 5, "n": 3}
    body = chat(http, **fields).json()
    assert [each["message"]["content"] for each in body["choices"]] == expected
    texts = ["", "", ""]
    for event in events(chat(http, stream=True, **fields).text.splitlines()):
        [choice] = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == expected


def test_completions_take_texts_and_tokens_and_number_their_choices(server, http):
    fields = {"temperature": 0, "max_tokens": 8, "n": 2}
    prompts = ["the end", "an inn"]
    tokens = [server.engine.encoder.text(text) for text in prompts]
    params = SamplingParams(max_tokens=8)
    expected = [server.engine.generate(text, params).text for text in prompts for _ in range(2)]
    for prompt in (prompts, tokens):
        body = http.post("/v1/completions", json={"prompt": prompt, **fields}).json()
        assert [each["text"] for each in body["choices"]] == expected
        assert [each["index"] for each in body["choices"]] == [0, 1, 2, 3]
    echoed = http.post("/v1/completions", json={"prompt": tokens[0], "echo": True, **fields}).json()
    assert echoed["choices"][0]["text"] == "the end" + expected[0]
    texts = dict.fromkeys(range(4), "")
    streamed = http.post("/v1/completions", json={"prompt": prompts, "stream": True, **fields})
    for event in events(streamed.text.splitlines()):
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert list(texts.values()) == expected


def test_logprobs_are_the_models_own(server, http):
    params = SamplingParams(max_tokens=5, logprobs=2, ignore_eos=True)
    expected = list(server.engine.stream(CHAT, params))
    body = chat(
        http, logprobs=True, top_logprobs=2, temperature=0, max_tokens=5, ignore_eos=True
    ).json()
    content = body["choices"][0]["logprobs"]["content"]
    shown = [event for event in expected if event.token not in server.engine.loaded.eos_ids]
    assert len(content) == len(shown)
    for entry, event in zip(content, shown, strict=True):
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == pytest.approx([value for _, value in event.top])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"foo": 1}, "foo"),
        ({"functions": []}, "functions"),
        ({"temperature": 1000}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"temperature": float("nan")}, "temperature"),
        ({"logit_bias": {"5": float("nan")}}, "logit_bias"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"store": True}, "store"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"n": 1000}, "n"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5000": 1}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"seed": 1 << 70}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop_token_ids": [500]}, "stop_token_ids"),
        ({"stream_options": {"chunk": 1}}, "stream_options.chunk"),
        ({"speculative": {"method": "store:/etc"}}, "speculative.method"),
        ({"speculative": {"method": "copy+copy"}}, "speculative.method"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"messages": []}, "messages"),
    ],
)
def test_unsupported_fields_are_errors_with_their_name(http, fields, param):
    answer = chat(http, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("route", "body", "status", "says"),
    [
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, 400, "'suffix'"),
        ("/v1/completions", {"prompt": "a", "best_of": 3}, 400, "best_of"),
        ("/v1/completions", {"prompt": "a", "echo": True, "logprobs": 1}, 400, "echo"),
        ("/v1/completions", {"prompt": []}, 400, "empty"),
        ("/v1/completions", {"prompt": [500]}, 400, "token 500"),
        ("/v1/completions", {"prompt": "a", "model": "other"}, 404, "'other'"),
        ("/v1/completions", {"prompt": "\ud800"}, 400, "Unicode"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 5000}, 400, "2048"),
        ("/v1/completions", {"prompt": "a" * 3000}, 400, "2047"),
        ("/v1/completions", {"prompt": "a" * 100_000}, 400, "characters"),
        ("/v1/completions", {"prompt": "a", "guided_regex": "[a"}, 400, "grammar"),
        ("/v1/completions", {"prompt": "a", "guided_regex": "a", "guided_choice": ["a"]}, 400,
         "one structured"),
        ("/v1/completions", {"prompt": "a", "draft_texts": ["a" * 1_000_001]}, 413, "draft_texts"),
        ("/v1/responses", {"input": "a", "previous_response_id": "b"}, 400, "previous_response_id"),
        ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}, 400, "tools"),
        ("/tokenize", {}, 400, "prompt or messages"),
        ("/detokenize", {"tokens": [500]}, 400, "token 500"),
        ("/remove_external_corpus", {"corpus_id": "none"}, 404, "'none'"),
        ("/nowhere", {}, 404, "Not Found"),
    ],
)  # fmt: skip
def test_errors_are_openai_objects_of_one_line(http, route, body, status, says):
    answer = http.post(route, content=json.dumps(body), headers=JSON)
    error = answer.json()["error"]
    assert (answer.status_code, set(error)) == (status, {"message", "type", "param", "code"})
    assert says in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_content_that_is_not_text_is_an_error_with_its_type(http, kind):
    content = [{"type": kind, kind: {"url": "file:///etc/passwd"}}]
    answer = chat(http, messages=[{"role": "user", "content": content}])
    assert answer.status_code == 400
    assert kind in answer.json()["error"]["message"]


def test_an_internal_error_has_an_id_and_no_traceback(server, http, monkeypatch, caplog):
    def fail(*args, **options):
        raise RuntimeError("secret")

    monkeypatch.setattr(server.engine, "submit", fail)
    with caplog.at_level(logging.ERROR):
        answer = chat(http)
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert message.split()[2].rstrip(";") in caplog.text
    assert "secret" in caplog.text


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnected_client_frees_its_cache_rows(server, stream):
    with httpx.Client(base_url=server.url) as client, contextlib.suppress(httpx.ReadTimeout):
        body = {**LONG, "n": 3, "stream": stream}
        with client.stream("POST", "/v1/chat/completions", json=body, timeout=0.3) as answer:
            for _ in answer.iter_lines():
                break
    assert settled(server) == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_comments_report_the_prefill_before_the_first_token(monkeypatch, path):
    monkeypatch.setattr(sse, "COMMENT_SECONDS", 0.05)
    engine = tiny_engine(max_batch=4)
    held = Held(engine, monkeypatch)
    body = {"messages": [{"role": "user", "content": TEXT * 20}], "max_tokens": 8}
    if path == "/v1/responses":
        body = {"input": TEXT * 20, "max_output_tokens": 16}
    with (
        serving(engine) as running,
        httpx.stream("POST", running.url + path, json={**body, "stream": True}, timeout=60) as got,
    ):
        lines = got.iter_lines()
        assert next(line for line in lines if line.startswith(": ")) == ": queued"
        held.let(1)
        found = next(line for line in lines if line.startswith(": prefill"))
        done, tokens = map(int, re.findall(r"\d+", found))
        assert 0 < done <= tokens
        held.let()
        rest = [line for line in lines if line]
        data = [number for number, line in enumerate(rest) if line.startswith("data: ")]
        assert not any(line.startswith(":") for line in rest[data[1] :])


def test_a_finished_request_is_logged_with_its_counts(http, caplog):
    with caplog.at_level(logging.INFO, "graft.server"):
        usage = chat(http, temperature=0, ignore_eos=True).json()["usage"]
    [line] = [each.getMessage() for each in caplog.records if "prompt tokens" in each.getMessage()]
    assert line.startswith(f"{usage['prompt_tokens']} prompt tokens, ")
    assert re.search(
        r" cached, prefill \d+\.\d\d s, 20 tokens, [\d.]+ tokens/s, "
        r"\d+ of \d+ draft tokens accepted: length$",
        line,
    )


def test_grammars_predictions_and_speculation_are_per_request(server, http):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = chat(http, response_format=wanted, max_tokens=40, temperature=0).json()
    assert json.loads(body["choices"][0]["message"]["content"])["a"] == 1
    expected = server.engine.generate(CHAT, SamplingParams(max_tokens=40, ignore_eos=True))
    greedy = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    predicted = chat(
        http,
        prediction={"type": "content", "content": expected.text},
        speculative={"method": "copy"},
        **greedy,
    ).json()
    plain = chat(http, speculative={"enabled": False}, **greedy).json()
    few = chat(http, speculative={"method": "copy", "num_tokens": 2}, **greedy).json()
    for each in (predicted, plain, few):
        assert each["choices"][0]["message"]["content"] == expected.text
    details = predicted["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    drafted = [each["metrics"]["speculative_decoding"] for each in (predicted, plain, few)]
    assert drafted[0]["num_accepted_draft_tokens"] >= details["accepted_prediction_tokens"]
    assert drafted[1]["num_draft_tokens"] == 0
    assert drafted[2]["num_spec_tokens"] <= 2


@pytest.mark.parametrize("stream", [True, False])
def test_tool_calls_are_separated_from_text(http, stream):
    tool = {"type": "function", "function": {"name": "weather"}}
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    answer = chat(http, tools=[tool], guided_choice=[f"See: {call}"], max_tokens=200, stream=stream)
    if stream:
        choices = [event["choices"][0] for event in events(answer.text.splitlines())]
        content = "".join(each["delta"].get("content") or "" for each in choices)
        calls = [found for each in choices for found in each["delta"].get("tool_calls", [])]
        reason = choices[-1]["finish_reason"]
    else:
        [choice] = answer.json()["choices"]
        content, calls = choice["message"]["content"], choice["message"]["tool_calls"]
        reason = choice["finish_reason"]
    [found] = calls
    assert (content.strip(), reason) == ("See:", "tool_calls")
    assert found["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}


def test_the_prefix_cache_is_shared_by_prompts_of_one_salt_only(http):
    prompt = (TEXT * 20)[: 3 * BLOCK]

    def cached(**fields):
        body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, **fields}
        return http.post("/v1/completions", json=body).json()["usage"]["prompt_tokens_details"]

    assert cached(cache_salt="one")["cached_tokens"] == 0
    assert cached(cache_salt="one")["cached_tokens"] >= BLOCK
    assert cached(cache_salt="two")["cached_tokens"] == 0
    assert cached()["cached_tokens"] == 0
    assert cached()["cached_tokens"] >= BLOCK


def test_tokenize_and_detokenize_are_inverse(server, http):
    body = http.post("/tokenize", json={"prompt": "the end", "return_token_strs": True}).json()
    assert body["tokens"] == server.engine.encoder.text("the end")
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"])
    assert http.post("/detokenize", json={"tokens": body["tokens"]}).json()["prompt"] == "the end"
    chatted = http.post("/tokenize", json={"messages": CHAT}).json()
    assert chatted["tokens"] == server.engine.encoder.prompt(CHAT).tokens


def test_metrics_have_vllms_names_and_count(http):
    before = _counts(http)
    chat(http, temperature=0, max_tokens=20, ignore_eos=True, speculative={"method": "copy"})
    after = _counts(http)
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 20
    assert after["vllm:spec_decode_num_draft_tokens_total"] > 0
    for name in ("spec_decode_num_drafts_total", "spec_decode_num_accepted_tokens_total",
                 "time_to_first_token_seconds_count", "inter_token_latency_seconds_count",
                 "e2e_request_latency_seconds_count", "num_requests_running",
                 "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
                 "prefix_cache_hits_total", "prompt_tokens_total"):  # fmt: skip
        assert f"vllm:{name}" in after


def _counts(http):
    lines = [line for line in http.get("/metrics").text.splitlines() if line[0] != "#"]
    pairs = [line.rsplit(" ", 1) for line in lines]
    return {name.partition("{")[0]: float(value) for name, value in pairs}


@pytest.fixture(scope="module")
def locked():
    engine = tiny_engine(max_batch=4)
    engine.model.prefixes.use(max_rows=20_000)
    with serving(engine, api_keys=("first", "second"), max_body=100_000) as running:
        yield running


def as_user(server, key):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)


@pytest.mark.parametrize("key", [None, "third", "firs", "first2", "\u00fc"])
def test_requests_without_a_valid_key_get_401(locked, key):
    with httpx.Client(base_url=locked.url) as client:
        headers = [] if key is None else [(b"Authorization", f"Bearer {key}".encode())]
        for route in ("/v1/models", "/tokenize", "/list_external_corpora", "/docs"):
            answer = client.get(route, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert client.get("/health").status_code == 200


def test_a_body_that_is_too_large_gets_413_however_it_is_sent(locked):
    with as_user(locked, "first") as client:
        large = json.dumps({"prompt": "a" * 100_000}).encode()
        assert client.post("/v1/completions", content=large, headers=JSON).status_code == 413
        pieces = (large[i : i + 1000] for i in range(0, len(large), 1000))
        assert client.post("/v1/completions", content=pieces, headers=JSON).status_code == 413
        assert client.get("/v1/models").status_code == 200


def test_keys_share_neither_prefixes_nor_corpora(locked):
    greedy = {"prompt": (TEXT * 20)[: 3 * BLOCK], "max_tokens": 30, "temperature": 0}
    with as_user(locked, "first") as first, as_user(locked, "second") as second:
        answers = [client.post("/v1/completions", json=greedy).json() for client in (first, second)]
        assert [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers] == [0, 0]
        added = first.post(
            "/add_external_corpus",
            json={"corpus_id": "own", "documents": [answers[0]["choices"][0]["text"], "an inn"]},
        ).json()
        assert added["success"]
        assert second.get("/list_external_corpora").json()["corpus_token_counts"] == {}
        assert list(first.get("/list_external_corpora").json()["corpus_token_counts"]) == ["own"]
        assert second.post(
            "/remove_external_corpus", json={"corpus_id": "own"}
        ).status_code == 404  # fmt: skip
        drafted = [client.post("/v1/completions", json=greedy).json() for client in (first, second)]
        assert {each["choices"][0]["text"] for each in [*answers, *drafted]} == {
            answers[0]["choices"][0]["text"]
        }
        assert "store" in drafted[0]["metrics"]["accepted_by_source"]
        assert "store" not in drafted[1]["metrics"]["accepted_by_source"]
        assert first.post(
            "/remove_external_corpus", json={"corpus_id": "own"}
        ).json()["success"]  # fmt: skip
    tenants = locked.state.builder.corpora.tenants
    for drafters in tenants._drafters.values():
        assert not [name for name in drafters if "store:" in name]


def test_keys_and_salts_with_the_same_texts_learn_nothing_of_each_other():
    asked = {"prompt": "then on the river", "max_tokens": 60, "temperature": 1, "seed": 5}
    keys, from_pool = ("first", "second"), {}
    with (
        serving(tiny_engine(pools=Pools()), api_keys=keys) as running,
        as_user(running, "first") as first,
        as_user(running, "second") as second,
    ):
        for name, client, salt in [
            ("again", first, None),
            ("again", first, None),
            ("other key", second, None),
            ("other salt", first, "one"),
            ("other key, same salt", second, "one"),
        ]:
            answer = client.post("/v1/completions", json={**asked, "cache_salt": salt}).json()
            accepted = answer["metrics"]["accepted_by_source"]
            from_pool.setdefault(name, []).append(accepted.get("pool", 0))
    assert from_pool.pop("again")[1] > 10
    assert from_pool == {"other key": [0], "other salt": [0], "other key, same salt": [0]}


def test_each_key_has_its_own_drafters(locked):
    own = [locked.state.builder.corpora.tenants.drafters(tenant) for tenant in ("", "one", "two")]
    assert own[0] is locked.engine.drafters
    for name in own[0]:
        assert len({id(drafters[name]) for drafters in own}) == 3
    again = locked.state.builder.corpora.tenants.drafters("one")
    assert again is own[1]


def test_a_body_that_never_arrives_times_out():
    with (
        serving(tiny_engine(), body_timeout=0.2) as running,
        socket.create_connection(running.socket.getsockname(), timeout=20) as client,
    ):
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 408")


def test_an_answer_of_a_verifier_that_is_not_lossless_is_labelled():
    def other(tree, logits, sampler, drawn=None):
        return replace(walk(tree, logits, sampler, drawn), promise=Promise.OTHER_DISTRIBUTION)

    with (
        serving(tiny_engine(verify=other)) as running,
        httpx.Client(base_url=running.url, timeout=60) as http,
    ):
        whole = chat(http, temperature=0, ignore_eos=True).json()
        streamed = chat(http, stream=True, stream_options={"include_usage": True}, ignore_eos=True)
        answered = http.post("/v1/responses", json={"input": "the end", "max_output_tokens": 9})
    for each in (whole, events(streamed.text.splitlines())[-1], answered.json()):
        block = each["metrics"]["speculative_decoding"]
        assert (block["lossless"], block["promise"]) == (False, "other distribution")


def test_corpora_have_limits(locked):
    with as_user(locked, "first") as client:
        for number in range(8):
            body = {"corpus_id": str(number), "documents": ["the end"]}
            assert client.post("/add_external_corpus", json=body).status_code == 200
        again = {"corpus_id": "0", "documents": ["another"]}
        assert client.post("/add_external_corpus", json=again).status_code == 200
        full = client.post("/add_external_corpus", json={"documents": ["one more"]})
        assert full.json()["error"]["code"] == "too_many_corpora"
        path = client.post("/add_external_corpus", json={"file_path": "/etc/passwd"})
        assert (path.status_code, path.json()["error"]["param"]) in [
            (400, "documents"), (400, "file_path"),
        ]  # fmt: skip
        for number in range(8):
            client.post("/remove_external_corpus", json={"corpus_id": str(number)})


def test_on_a_signal_running_requests_finish_and_new_ones_get_503():
    engine, body = tiny_engine(max_batch=2), {**LONG, "max_tokens": 400, "stream": True}
    with serving(engine, grace=30.0) as running:
        with httpx.stream(
            "POST", f"{running.url}/v1/chat/completions", json=body, timeout=60
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            running.server.handle_exit(signal.SIGTERM, None)
            streamed = events(["data: {}", *lines])
        assert streamed[-1]["choices"][0]["finish_reason"] == "length"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{running.url}/health")


def test_after_the_grace_period_running_requests_end_with_an_error():
    engine = tiny_engine(max_batch=2)
    with (
        serving(engine, grace=0.0) as running,
        httpx.stream(
            "POST", f"{running.url}/v1/chat/completions", json={**LONG, "stream": True}, timeout=60
        ) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        running.server.handle_exit(signal.SIGTERM, None)
        assert events(["data: {}", *lines])[-1]["error"]["code"] == "shutting_down"


def test_a_full_queue_sends_retry_after(monkeypatch):
    engine = tiny_engine(max_batch=1)
    held = Held(engine, monkeypatch)
    with serving(engine, max_waiting=0) as running:
        url = f"{running.url}/v1/chat/completions"
        with httpx.stream("POST", url, json={**LONG, "stream": True}, timeout=60) as answer:
            lines = answer.iter_lines()  # kept: a client that drops it hangs up
            held.let(1)
            next(lines)
            refused = httpx.post(url, json={"messages": CHAT})
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            held.let()
        assert settled(running) == 0
        assert httpx.post(url, json={"messages": CHAT, "max_tokens": 3}).status_code == 200


def test_a_request_over_its_timeout_gets_504():
    with serving(tiny_engine(), timeout=0.1) as running:
        url = f"{running.url}/v1/chat/completions"
        assert httpx.post(url, json=LONG).status_code == 504
        streamed = events(httpx.post(url, json={**LONG, "stream": True}).text.splitlines())
        assert streamed[-1]["error"]["code"] == "timeout"
