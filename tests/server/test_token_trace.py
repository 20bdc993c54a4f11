"""`speculative.trace`: who guessed each token, and where the copied ones stand in what was sent."""

import json

import httpx
import pytest
from serving import serving
from tiny import tiny_engine

from graft.sampling import SamplingParams

TRACE = {"trace": True}
QUESTION = "where the end 😀 is"
DRAWN = {"temperature": 0.5, "seed": 3, "ignore_eos": True}
# What the tiny model said once it says again: texts of it are copied from.
OWN = (
    tiny_engine()
    .generate([{"role": "user", "content": QUESTION}], SamplingParams(max_tokens=150, **DRAWN))
    .text
)
DRAFT_TEXTS = ["an inn", {"text": f"😀 é{OWN}"}]
CHAT = [
    {"role": "system", "content": "  the river and the inn, é"},
    {"role": "user", "content": [{"type": "text", "text": f"  😀{OWN}"},
                                 {"type": "text", "text": f"{QUESTION} "}]},
]  # fmt: skip
CONTENTS = [CHAT[0]["content"], "\n".join(part["text"] for part in CHAT[1]["content"])]
TEXTS = {"message": CONTENTS, "draft_text": [DRAFT_TEXTS[0], DRAFT_TEXTS[1]["text"]]}
FIELDS = {"max_tokens": 150, **DRAWN}


@pytest.fixture(scope="module")
def http():
    with (
        serving(tiny_engine(max_batch=4)) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
    ):
        yield client


def post(http, route, **fields):
    answer = http.post(route, json={**FIELDS, "speculative": TRACE, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def streamed(answer):
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def check_copies(trace, texts):
    """Copied tokens stand where their entries say; the kinds of text they stand in."""
    kinds = set()
    for entry in trace:
        if (origin := entry["copied_from"]) is None:
            continue
        kinds.add(origin["kind"])
        if origin["kind"] == "output":
            assert trace[origin["token"]]["token"] == entry["token"]
        elif entry["text"].isascii() and entry["text"]:  # others may be parts of characters
            text = texts[origin["kind"]][origin["index"]]
            assert text[origin["start"] : origin["end"]] == entry["text"]
    return kinds


def test_a_chat_traces_every_token_streamed_or_not(http):
    body = post(http, "/v1/chat/completions", messages=CHAT).json()
    [choice] = body["choices"]
    trace = choice["trace"]
    assert "".join(entry["text"] for entry in trace) == choice["message"]["content"]
    assert len(trace) == body["usage"]["completion_tokens"]
    assert choice["logprobs"] is None
    assert check_copies(trace, TEXTS) >= {"message"}
    assert all(0 <= entry["probability"] <= 1 for entry in trace)

    chunks = streamed(post(http, "/v1/chat/completions", messages=CHAT, stream=True,
                           stream_options={"include_usage": True}))  # fmt: skip
    of_chunks = [e for c in chunks for choice in c["choices"] for e in choice.get("trace", [])]
    assert of_chunks == trace
    block = chunks[-1]["metrics"]["speculative_decoding"]
    counted = [0] * block["num_spec_steps"]
    for entry in trace:
        if entry["source"]:
            counted[entry["step"] - 1] += 1
    assert counted == block["per_step_accepted"]
    assert len(block["per_step_drafted"]) == len(counted)


def test_draft_texts_are_traced_by_their_index(http):
    messages = [{"role": "user", "content": QUESTION}]
    body = post(http, "/v1/chat/completions", messages=messages, draft_texts=DRAFT_TEXTS).json()
    trace = body["choices"][0]["trace"]
    assert check_copies(trace, TEXTS) >= {"draft_text"}
    numbers = {e["copied_from"]["index"] for e in trace if e["source"] == "document"}
    assert numbers == {1}


def test_each_answer_to_one_prompt_has_its_trace(http):
    body = post(http, "/v1/chat/completions", messages=CHAT, n=2).json()
    for choice in body["choices"]:
        assert "".join(e["text"] for e in choice["trace"]) == choice["message"]["content"]


def test_the_message_that_describes_tools_is_traced_as_template(http):
    tool = {"type": "function", "function": {"name": "look", "description": "the river"}}
    body = post(http, "/v1/chat/completions", messages=[CHAT[1]], tools=[tool]).json()
    check_copies(body["choices"][0]["trace"], TEXTS | {"message": CONTENTS[1:]})


@pytest.mark.parametrize("stream", [False, True])
def test_completions_of_texts_and_of_tokens(http, stream):
    prompts = [f"😀{OWN}", f"an inn {OWN[30:]}"]
    answer = post(http, "/v1/completions", prompt=prompts, stream=stream)
    choices = [c for chunk in streamed(answer) for c in chunk["choices"]] if stream else (
        answer.json()["choices"])  # fmt: skip
    texts = TEXTS | {"prompt": prompts}
    for index in range(2):
        mine = [each for each in choices if each["index"] == index]
        trace = [entry for each in mine for entry in each.get("trace", [])]
        assert "".join(e["text"] for e in trace) == "".join(each["text"] for each in mine)
        assert check_copies(trace, texts)
    tokens = http.post("/tokenize", json={"prompt": prompts[0]}).json()["tokens"]
    body = post(http, "/v1/completions", prompt=tokens).json()
    origins = [e["copied_from"] for e in body["choices"][0]["trace"] if e["copied_from"]]
    assert {origin["start"] for origin in origins} == {None}


def test_responses_are_traced_too(http):
    fields = {"max_output_tokens": 60, "input": CONTENTS[1], "temperature": 0, "speculative": TRACE}
    body = http.post("/v1/responses", json=fields).json()
    assert "".join(e["text"] for e in body["trace"]) == body["output"][0]["content"][0]["text"]
    chunks = streamed(http.post("/v1/responses", json={**fields, "stream": True}))
    assert [e for chunk in chunks for e in chunk.get("trace", [])] == body["trace"]


def test_there_is_no_trace_unless_requested(http):
    fields = {"messages": CHAT, "max_tokens": 5}
    body = http.post("/v1/chat/completions", json=fields).json()
    assert "trace" not in body["choices"][0]
    assert "per_step_drafted" not in body["metrics"]["speculative_decoding"]
    chunks = streamed(http.post("/v1/chat/completions", json={**fields, "stream": True}))
    assert not any("trace" in choice for chunk in chunks for choice in chunk["choices"])


def test_plain_answers_have_probabilities_and_no_sources(http):
    body = post(http, "/v1/chat/completions", messages=CHAT,
                speculative={"enabled": False, "trace": True}).json()  # fmt: skip
    trace = body["choices"][0]["trace"]
    assert {entry["source"] for entry in trace} == {None}
    assert [entry["step"] for entry in trace] == list(range(len(trace)))
