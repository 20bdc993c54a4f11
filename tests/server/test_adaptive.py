"""Adaptive retrieval over HTTP gives the answers of a session, streamed or not."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from serving import serving, user
from tiny import tiny_engine, tiny_network

from graft.cli.resident import RETRIEVAL
from graft.documents import Document
from graft.rag import session
from graft.rag.corpus import Bm25Corpus
from graft.rag.corpus_files import Known, document_passages, read_corpus
from graft.rag.policies import make_policy
from graft.rag.policy import POLICIES, TUNED_FOR
from graft.rag.session import Session
from graft.sampling import SamplingParams
from graft.server.schema import Retrieval

QUESTION = "Where is the apple in the river?"
TEXTS = {
    "apple": "the apple and the pear in the water. " * 8,
    "river": "a river and a boat on the water. " * 20,
    "cat": "the cat near the river and the apple. " * 3,
}
DOCUMENTS = [{"title": f"{name}.md", "text": text} for name, text in TEXTS.items()]
SEEDED = {"temperature": 0.8, "seed": 5, "max_tokens": 60}
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=60)
OPTIONS = {"fl": {"threshold": 12}, "flare": {"threshold": 0.3}, "dragin": {"threshold": 0.5}}
PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.fixture(scope="module")
def server():
    engine = tiny_engine(tiny_network(max_position_embeddings=16384), max_batch=4)
    engine.model.prefixes.use(max_rows=200_000)
    with serving(engine, api_keys=("first", "second")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with user(server) as made:
        yield made


def ask(client, *, retrieval, stream=False, question=QUESTION, documents=DOCUMENTS, **extra):
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else question
    return client.chat.completions.create(
        model="tiny", messages=messages, stream=stream,
        extra_body={"documents": documents, "retrieval": retrieval, **extra}, **SEEDED,
    )  # fmt: skip


def until_idle(server):
    """Wait for the end of all sequences and threads of answers."""
    for _ in range(400):
        names = [each.name for each in threading.enumerate()]
        if server.rows_in_use() == 0 and "graft-rounds" not in names:
            return
        time.sleep(0.05)
    raise AssertionError(names)


def corpus():
    known = Known()
    documents = [Document(each["title"], each["text"]) for each in DOCUMENTS]
    return Bm25Corpus([p for each in documents for p, _ in document_passages(each, known)])


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_and_rounds_are_those_of_a_session(server, client, policy):
    options = {"rounds": 3, **OPTIONS.get(policy, {})}
    threshold = options.get("threshold")
    expected = Session(
        server.engine, corpus(), policy=policy, threshold=threshold, max_rounds=3
    ).ask(QUESTION, PARAMS)
    answer = ask(client, retrieval={"policy": policy, **options})
    [choice] = answer.choices
    assert choice.message.content == expected.text
    found = choice.model_dump()["retrieval"]
    assert (found["policy"], found["answer"]) == (policy, expected.answer)
    assert len(found["rounds"]) == len(expected.rounds) > 1
    for each, wanted in zip(found["rounds"], expected.rounds, strict=True):
        assert (each["query"], each["text"]) == (wanted.query, wanted.text)
        assert [p["source"] for p in each["passages"]] == [h.passage.source for h in wanted.hits]
    assert answer.usage.completion_tokens == expected.totals.tokens
    assert answer.usage.prompt_tokens == expected.totals.prompt_tokens


def test_thresholds_of_a_request_are_the_policys(client, monkeypatch):
    made = []

    def make(name, engine, **options):
        made.append(make_policy(name, engine, **options))
        return made[-1]

    monkeypatch.setattr(session, "make_policy", make)
    for chosen in ({}, {"thresholds": "13b"}):
        ask(client, retrieval={"policy": "flare", "family": "strategyqa", "rounds": 0, **chosen})
    assert [policy.threshold for policy in made] == [0.10, 0.06]


def test_streamed_text_and_rounds_are_the_same(client):
    retrieval = {"policy": "fl", "threshold": 12, "rounds": 3}
    [choice] = ask(client, retrieval=retrieval).choices
    chunks = list(ask(client, retrieval=retrieval, stream=True))
    text = "".join(each.choices[0].delta.content or "" for each in chunks)
    assert text == choice.message.content
    last = chunks[-1].choices[0]
    assert last.finish_reason == choice.finish_reason
    wanted, got = choice.model_dump()["retrieval"], last.model_dump()["retrieval"]
    assert [each["text"] for each in got["rounds"]] == [each["text"] for each in wanted["rounds"]]
    assert got["rounds"][0]["query"] == QUESTION


def test_corpora_are_searched_for_their_key_only(server, client):
    client.post("/corpora", body={"id": "house", "documents": DOCUMENTS}, cast_to=object)
    fields = {"retrieval": {"policy": "fs", "rounds": 2}}
    expected = ask(client, **fields).choices[0].message.content
    answer = ask(client, documents=None, corpora=["house"], **fields)
    assert answer.choices[0].message.content == expected
    with user(server, "second") as other:
        with pytest.raises(openai.NotFoundError, match="no corpus 'house'"):
            ask(other, documents=None, corpora=["house"], **fields)
        first = ask(other, **fields).choices[0].retrieval["rounds"][0]
        assert "passage" not in first["reused"]
    assert "passage" in ask(client, **fields).choices[0].retrieval["rounds"][0]["reused"]


def test_cancelled_answer_frees_its_rows(server):
    body = {"model": "tiny", "stream": True, "documents": DOCUMENTS, "max_tokens": 9000,
            "messages": [{"role": "user", "content": QUESTION}], "ignore_eos": True,
            "retrieval": {"policy": "fl", "threshold": 8, "rounds": 64}}  # fmt: skip
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json=body,
        headers={"Authorization": "Bearer first"}, timeout=60,
    ) as answer:  # fmt: skip
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        assert json.loads(next(lines)[6:])["choices"][0]["delta"]["role"] == "assistant"
    until_idle(server)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"retrieval": {"policy": "best"}}, "retrieval.policy"),
        ({"retrieval": {"thresholds": "70b"}}, "retrieval.thresholds"),
        ({"retrieval": {"policy": "fs", "threshold": 1}}, "FS-RAG has no threshold"),
        ({"retrieval": {"family": "/etc/x.toml"}}, "retrieval.family"),
        ({"retrieval": {}, "documents": []}, "needs documents or corpora"),
        ({"retrieval": {}, "logprobs": True}, "logprobs cannot be combined with retrieval"),
        ({"retrieval": {}, "n": 2}, "leave n at 1"),
        ({"retrieval": {}, "speculative": {"trace": True}}, "speculative.trace cannot"),
        ({"retrieval": {}, "question": [{"role": "system", "content": "a"}]}, "one user message"),
    ],
)
def test_wrong_options_get_one_clear_line(client, fields, says):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, **fields)
    assert says in raised.value.body["message"]
    assert "\n" not in raised.value.body["message"]


def test_fields_of_the_schema_are_those_of_graft_ask():
    assert {*RETRIEVAL} == {*Retrieval.model_fields}
    for name in POLICIES:
        assert Retrieval(policy=name).policy == name
    for name in TUNED_FOR:
        assert Retrieval(thresholds=name).thresholds == name


def test_files_of_graft_ask_have_the_same_passages(tmp_path):
    for each in DOCUMENTS:
        (tmp_path / each["title"]).write_text(each["text"])
    found = sorted(each.id for each in read_corpus([tmp_path]).passages)
    assert found == sorted(each.id for each in corpus().passages)


def test_the_example_of_the_page_runs(loaded_smollm2):
    [example] = re.findall(r"-d '(\{[^']*\"retrieval\"[^']*\})'", PAGE.read_text())
    house = [{"title": "lift.md", "text": "The lift is serviced every March."}]
    with serving(loaded_smollm2) as running, httpx.Client(base_url=running.url, timeout=300) as web:
        web.post("/v1/corpora", json={"id": "house", "documents": house}).raise_for_status()
        answer = web.post("/v1/chat/completions", json=json.loads(example)).raise_for_status()
    [choice] = answer.json()["choices"]
    rounds = choice["retrieval"]["rounds"]
    assert [each["source"] for each in rounds[0]["passages"]] == ["lift.md"]
    assert "March" in choice["message"]["content"]
    assert choice["message"]["annotations"][0]["url_citation"]["title"] == "lift.md"


def test_answers_do_not_depend_on_other_requests(server, client):
    policies = [{"policy": name, "rounds": 2, **OPTIONS.get(name, {})} for name in POLICIES] * 2

    def texts(each):
        if each is None:
            [choice] = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": QUESTION}], **SEEDED
            ).choices
        else:
            [choice] = ask(client, retrieval=each).choices
        return choice.message.content

    wanted = [*policies, None, None]
    alone = [texts(each) for each in wanted]
    with ThreadPoolExecutor(len(wanted)) as pool:
        assert list(pool.map(texts, wanted)) == alone
    assert server.rows_in_use() == 0


def test_answer_that_takes_too_long_ends_with_its_thread():
    engine = tiny_engine(tiny_network(max_position_embeddings=16384), max_batch=2)
    with serving(engine, timeout=0.1) as running, user(running) as slow:
        with pytest.raises(openai.APIStatusError) as raised:
            slow.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": QUESTION}], max_tokens=9000,
                extra_body={"documents": DOCUMENTS, "ignore_eos": True,
                            "retrieval": {"policy": "fl", "threshold": 8, "rounds": 64}},
            )  # fmt: skip
        assert raised.value.status_code == 504
        until_idle(running)
