"""Clients that people use and the snippets of docs/quickstart.md, with the real model."""

import json
import re
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import openai
import pytest
from daily import daily
from serving import serving

import graft
from graft.sampling import SamplingParams

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SERVED = [each for each in SNIPPETS if "8000" in each]
TOKENS = 16  # of an answer; the least that the client of the Responses API sends
QUESTION = [{"role": "user", "content": "Name three fruits."}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather of a city", "parameters": CITY},
}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def server(loaded_smollm2):
    with serving(loaded_smollm2, api_keys=("key",)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def expected(server):
    return server.engine.generate(QUESTION, SamplingParams(max_tokens=TOKENS))


def ask(client, max_tokens=TOKENS, **fields):
    return client.chat.completions.create(
        model="smollm2-135m", messages=QUESTION, temperature=0, max_tokens=max_tokens, **fields
    )


def test_openai_chat_is_the_engines_answer(client, expected):
    answer = ask(client)
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.metrics["speculative_decoding"]["num_spec_steps"] == expected.stats.steps


def test_openai_streams_a_chunk_for_every_token_with_logprobs(client, expected):
    chunks = list(
        ask(client, stream=True, stream_options={"include_usage": True}, logprobs=True,
            top_logprobs=2)
    )  # fmt: skip
    content = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(content) == expected.text
    entries = [
        entry
        for chunk in chunks
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert "".join(entry.token for entry in entries) == expected.text
    assert all(entry.top_logprobs[0].logprob >= entry.logprob - 1e-6 for entry in entries)
    assert len(content) >= len(entries)
    assert chunks[-1].usage.completion_tokens == len(expected.token_ids)


def test_openai_completions(server, client):
    answer = client.completions.create(
        model="smollm2-135m", prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=1
    )
    expected = server.engine.generate("Once upon a time", SamplingParams(max_tokens=8))
    assert answer.choices[0].text == expected.text
    assert "".join(answer.choices[0].logprobs.tokens) == expected.text


def test_openai_responses_streamed_or_not(client, expected):
    fields = {"model": "smollm2-135m", "input": QUESTION[0]["content"], "temperature": 0}
    answer = client.responses.create(max_output_tokens=TOKENS, **fields)
    assert answer.output_text == expected.text
    with client.responses.stream(max_output_tokens=TOKENS, **fields) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == expected.text
        assert stream.get_final_response().output_text == expected.text


def test_openai_json_schema_and_regex(client):
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    answer = ask(client, 24, response_format=wanted)
    assert json.loads(answer.choices[0].message.content)["city"] in ("Oslo", "Rome")
    numbered = ask(client, extra_body={"structured_outputs": {"regex": "[0-9]{4}"}})
    assert numbered.choices[0].message.content.isdecimal()


@pytest.mark.parametrize(
    ("choice", "stream"),
    daily(product(["required", NAMED], [True, False]), ("required", True), (NAMED, False)),
)
def test_openai_required_tools_are_called(client, choice, stream):
    answer = ask(client, 24, tools=[WEATHER], tool_choice=choice, stream=stream,
                 parallel_tool_calls=False)  # fmt: skip
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        [call] = [call for each in choices for call in each.delta.tool_calls or []]
        reason = choices[-1].finish_reason
    else:
        [call], reason = answer.choices[0].message.tool_calls, answer.choices[0].finish_reason
    assert (call.function.name, reason) == ("weather", "tool_calls")
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")


def test_openai_tools_and_their_results_enter_the_prompt(client):
    call = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    messages = [
        *QUESTION,
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "1", "content": "Sunny"},
    ]
    answer = client.chat.completions.create(
        model="smollm2-135m", messages=messages, tools=[WEATHER], max_tokens=8, temperature=0
    )
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert answer.usage.prompt_tokens > 100


def test_openai_raises_its_own_errors(server, client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="smollm2-135m", messages=QUESTION, temperature=-1)
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="other", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    assert [model.id for model in client.models.list()] == ["smollm2-135m"]


@pytest.mark.slow
def test_langchain(server, expected):
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="key", model="smollm2-135m", temperature=0,
        max_tokens=TOKENS,
    )  # fmt: skip
    assert chat.invoke(QUESTION[0]["content"]).content == expected.text
    assert "".join(each.content for each in chat.stream(QUESTION[0]["content"])) == expected.text
    chat = chat.model_copy(update={"max_tokens": 24})
    city = chat.with_structured_output(CITY | {"title": "city"}, method="json_schema")
    assert city.invoke("Where is the Colosseum?")["city"] in ("Oslo", "Rome")


@pytest.mark.slow
def test_llama_index(server, expected):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model="smollm2-135m", api_base=f"{server.url}/v1", api_key="key", is_chat_model=True,
        temperature=0, max_tokens=TOKENS,
    )  # fmt: skip
    messages = [ChatMessage(role="user", content=QUESTION[0]["content"])]
    assert model.chat(messages).message.content == expected.text
    assert [each.message.content for each in model.stream_chat(messages)][-1] == expected.text


def test_curl(server, expected):
    fields = {"messages": QUESTION, "temperature": 0, "max_tokens": TOKENS, "stream": True}
    done = subprocess.run(
        ["curl", "-sN", f"{server.url}/v1/chat/completions", "-H", "Authorization: Bearer key",
         "-H", "Content-Type: application/json", "-d", json.dumps(fields)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
    assert lines.pop() == "[DONE]"
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    assert "".join(delta.get("content", "") for delta in deltas) == expected.text


@pytest.mark.parametrize("snippet", SERVED, ids=["openai", "langchain", "llama_index"])
def test_a_clients_snippet_runs(server, snippet, capsys):
    code = snippet.replace("http://127.0.0.1:8000", server.url).replace('"none"', '"key"')
    exec(compile(code, "quickstart.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_engines_snippet_runs(loaded_smollm2, monkeypatch, capsys):
    """With the beginning of its document, which is prefilled in a tenth of the time."""
    [snippet] = [each for each in SNIPPETS if each not in SERVED]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(graft, "load", lambda name: loaded_smollm2)
    beginnings = [
        replace(each, text=each.text[:600])
        for each in graft.read_documents(["examples/service_agreement.md"])
    ]
    monkeypatch.setattr(graft, "read_documents", lambda paths: beginnings)
    exec(compile(snippet, "quickstart.md", "exec"), {})
    assert len(capsys.readouterr().out.split()) > 20


@pytest.mark.slow
def test_cells_of_the_notebook_run_in_order(loaded_smollm2, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(graft, "load", lambda name: loaded_smollm2)
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    names, printed = {}, []
    for cell in cells:
        exec(compile("".join(cell["source"]), "quickstart.ipynb", "exec"), names)
        printed.append(capsys.readouterr().out)
    assert all(len(text.split()) > 2 for text in printed)
    assert "same text: True" in printed[2]
    shown = ["".join(cell["outputs"][0]["text"]) for cell in cells]
    assert shown[0] == printed[0]
    assert [len(text.splitlines()) for text in shown[2:4]] == [
        len(text.splitlines()) for text in printed[2:4]
    ]
