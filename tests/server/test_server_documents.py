"""Requests are answered from documents and corpora, and cite them."""

import gzip
import re
from pathlib import Path

import httpx
import openai
import pytest
from serving import serving, user
from tiny import tiny_engine
from tiny_office import TABLE, docx
from tiny_pdf import text_pdf

from graft.decode.document_prompt import GAP, document_prompt
from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.documents import Document, document_messages
from graft.sampling import SamplingParams
from graft.server import tenants
from graft.server.preload import preload
from graft.server.settings import ServerSettings

QUESTION = "where is the zebra"
LIFT = {"title": "lift.md", "text": "  the lift is old and the river is near the inn\n"}
ZOO = "the zebra lives on the river near the inn. "
FILLER = "there is not much to see in this line of the text.\n\n"
LONG = {"title": "long.txt", "text": FILLER * 30 + ZOO + FILLER * 30}
GREEDY = {"temperature": 0, "max_tokens": 24}
PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.fixture(scope="module")
def server():
    engine = tiny_engine(max_batch=4)
    engine.model.prefixes.use(max_rows=20_000)
    corpus = (Document("zoo.md", ZOO * 3),)
    with serving(engine, api_keys=("first", "second"), corpus=corpus) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with user(server) as made:
        yield made


def ask(client, question=QUESTION, *, stream=False, **extra):
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else question
    extra = {"corpora": [], **extra}
    return client.chat.completions.create(
        model="tiny", messages=messages, stream=stream, extra_body=extra, **GREEDY
    )


def repeat(text):
    """Make the tiny model, which knows no answer, repeat a text."""
    return {"guided_choice": [text], "max_tokens": 200}


def test_the_prompt_is_that_of_graft_run(server, client):
    documents = [Document("lift.md", LIFT["text"]), Document("2", ZOO * 9)]
    prompt = document_messages(QUESTION, documents)
    expected = server.engine.generate(prompt, SamplingParams(max_tokens=24))
    answer = ask(client, documents=[LIFT, ZOO * 9])
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.prompt_tokens == expected.stats.prompt_tokens
    again = ask(client, "what is old", documents=[LIFT, ZOO * 9])
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_long_documents_are_answered_from_their_best_passages(server, client):
    documents = [Document(LONG["title"], LONG["text"])]
    prompt = document_prompt(server.engine, QUESTION, documents, SamplingParams(max_tokens=24))
    assert not prompt.whole
    assert GAP in prompt.messages[0]["content"]
    expected = server.engine.generate(prompt.messages, SamplingParams(max_tokens=24))
    answer = ask(client, documents=[LONG])
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.prompt_tokens == expected.stats.prompt_tokens


def test_copied_spans_are_cited_streamed_or_not(client):
    said = "see: The lift is old; the zebra lives on the river"
    fields = {"documents": [LONG, LIFT], **repeat(said)}
    question = "where are the zebra and the lift"
    [choice] = ask(client, question, **fields).choices
    found = [each.url_citation for each in choice.message.annotations]
    spans = [(said[each.start_index : each.end_index], each.title) for each in found]
    assert spans == [
        ("The lift is old", "lift.md"),
        ("the zebra lives on the river", "long.txt"),
    ]
    for each, document in zip(found, (LIFT, LONG), strict=True):
        start, end = map(int, re.search(r"#char=(\d+),(\d+)", each.url).groups())
        copied = said[each.start_index : each.end_index]
        assert document["text"][start:end].lower() == copied.lower()
    assert [each.url.partition("#")[0] for each in found] == ["document:1", "document:0"]
    chunks = list(ask(client, question, stream=True, **fields))
    wanted = [each.model_dump() for each in choice.message.annotations]
    assert chunks[-1].choices[0].delta.annotations == wanted
    schema = {"type": "object", "properties": {"a": {"const": "the lift is old"}},
              "required": ["a"], "additionalProperties": False}  # fmt: skip
    response = client.responses.create(
        model="tiny", input=QUESTION, max_output_tokens=200, extra_body={"documents": [LIFT]},
        text={"format": {"type": "json_schema", "name": "a", "schema": schema}},
    )  # fmt: skip
    [part] = response.output[0].content
    [citation] = part.annotations
    assert part.text[citation.start_index : citation.end_index] == "the lift is old"
    assert (citation.type, citation.title) == ("url_citation", "lift.md")


def test_documents_of_a_chat_begin_its_first_question(server, client):
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "on the river"},
        {"role": "user", "content": "and the lift?"},
    ]
    with_document = [chat[0], *document_messages(QUESTION, [Document("1", ZOO)]), *chat[2:]]
    expected = server.engine.generate(with_document, SamplingParams(max_tokens=24))
    assert ask(client, chat, documents=[ZOO]).choices[0].message.content == expected.text


def test_the_trace_names_the_document_of_copied_tokens(client):
    fields = {"documents": [ZOO, LIFT], "speculative": {"method": "copy", "trace": True}}
    [choice] = ask(client, **fields, **repeat(LIFT["text"].strip())).choices
    origins = [each["copied_from"] for each in choice.trace if each["copied_from"]]
    assert {"document"} <= {each["kind"] for each in origins}
    for entry in choice.trace:
        origin = entry["copied_from"]
        if origin and origin["kind"] == "document":
            text = [ZOO, LIFT["text"]][origin["index"]]
            assert text[origin["start"] : origin["end"]] == entry["text"]


def test_every_chat_is_answered_from_the_servers_corpus(server, client):
    expected = ask(client, documents=[{"title": "zoo.md", "text": ZOO * 3}])
    answer = ask(client, corpora=None)
    assert answer.choices[0].message.content == expected.choices[0].message.content
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert ask(client).usage.prompt_tokens < answer.usage.prompt_tokens
    named = ask(client, corpora=["default"], **repeat("the zebra lives on the river"))
    assert named.choices[0].message.annotations[0].url_citation.title == "zoo.md"


def test_uploaded_corpora_answer_only_their_key(server, client):
    body = {"id": "house", "documents": [LIFT, ZOO]}
    made = client.post("/corpora", body=body, cast_to=object)
    assert (made["id"], made["documents"]) == ("house", 2)
    assert made["tokens"] > 0
    expected = ask(client, documents=[LIFT, ZOO])
    answer = ask(client, corpora=["house"])
    assert answer.choices[0].message.content == expected.choices[0].message.content
    with user(server, "second") as other:
        assert [each["id"] for each in other.get("/corpora", cast_to=object)["data"]] == ["default"]
        with pytest.raises(openai.NotFoundError, match="no corpus 'house'"):
            ask(other, corpora=["house"])
        with pytest.raises(openai.NotFoundError):
            other.delete("/corpora/house", cast_to=object)
        assert ask(other, documents=[LIFT, ZOO]).usage.prompt_tokens_details.cached_tokens == 0
    listed = client.get("/corpora", cast_to=object)["data"]
    assert [each["id"] for each in listed] == ["default", "house"]
    assert client.delete("/corpora/house", cast_to=object)["deleted"]
    with pytest.raises(openai.NotFoundError):
        ask(client, corpora=["house"])


def test_uploaded_corpora_survive_a_restart(tmp_path, caplog):
    def listed(key):
        with user(running, key) as client:
            return [each["id"] for each in client.get("/corpora", cast_to=object)["data"]]

    kept = {"api_keys": ("first", "second"), "corpora_folder": tmp_path / "kept"}
    odd = "../ä/house"
    with serving(tiny_engine(), **kept) as running, user(running) as client:
        for name, document in ((odd, {**LIFT, "pages": [0, 4]}), ("gone", ZOO), ("new", ZOO)):
            client.post("/corpora", body={"id": name, "documents": [document]}, cast_to=object)
        client.post("/corpora", body={"id": "new", "documents": [LIFT]}, cast_to=object)
        client.delete("/corpora/gone", cast_to=object)
        before = ask(client, corpora=["new"]).choices[0].message.content
    files = sorted((tmp_path / "kept").rglob("*.json.gz"))
    assert len(files) == 2
    assert files[0].parent.stat().st_mode & 0o077 == 0
    assert not [each for each in tmp_path.rglob("*") if "first" in each.name]
    (files[0].parent / "damaged.json.gz").write_bytes(files[0].read_bytes()[:-20])
    with serving(tiny_engine(), **kept) as running, user(running) as client:
        assert sorted(listed("first")) == [odd, "new"]
        assert listed("second") == []
        assert ask(client, corpora=["new"]).choices[0].message.content == before
        [choice] = ask(client, corpora=[odd], **repeat("the lift is old")).choices
        assert choice.message.annotations[0].url_citation.model_dump()["pages"] == [1, 2]
    assert caplog.text.count("damaged.json.gz") == 1
    with serving(tiny_engine(), corpora_folder=tmp_path / "kept") as running:
        assert listed("first") == []  # without keys the texts of keys are not shown


def test_a_request_keeps_a_corpus_that_is_removed_before_it_starts(server):
    corpora = server.state.builder.corpora
    corpora.add("other", "house", [Document("1", ZOO * 3)])
    chosen = corpora.drafter("other", "auto")
    corpora.remove("other", "house")
    request = PreparedRequest(
        Request(ZOO, SamplingParams(max_tokens=8), chosen.name), drafters=chosen
    )
    expected = server.engine.generate(ZOO, SamplingParams(max_tokens=8))
    assert server.engine.generate(request).text == expected.text
    assert corpora.drafter("other", "auto").name == "auto"


def test_a_corpus_that_cannot_be_kept_is_not_acknowledged(tmp_path):
    (tmp_path / "kept").write_text("a file, not a folder")
    with serving(tiny_engine(), corpora_folder=tmp_path / "kept") as running:
        with user(running) as client:
            with pytest.raises(openai.APIStatusError, match="cannot keep this on disk") as raised:
                client.post("/corpora", body={"documents": [ZOO]}, cast_to=object)
            assert raised.value.status_code == 507
            assert client.get("/corpora", cast_to=object)["data"] == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"documents": ["a", " "]}, "documents.1 is empty"),
        ({"documents": "a"}, "documents"),
        ({"documents": [{"title": "a"}]}, "documents.0"),
        ({"documents": ["a" * 1_000_001]}, "1000000 characters"),
        ({"corpora": ["none"]}, "no corpus 'none'"),
        ({"documents": ["a"], "messages": [{"role": "system", "content": "a"}]}, "user"),
    ],
)
def test_wrong_documents_get_one_clear_line(client, fields, says):
    with pytest.raises(openai.APIStatusError) as raised:
        ask(client, **fields)
    assert 400 <= raised.value.status_code < 500
    message = raised.value.body["message"]
    assert says in message
    assert "\n" not in message


def test_completions_refuse_documents(client):
    with pytest.raises(openai.BadRequestError, match="draft_texts"):
        client.completions.create(model="tiny", prompt="a", extra_body={"documents": ["a"]})


def test_the_example_of_the_page_cites_its_document(loaded_smollm2, capsys):
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with serving(loaded_smollm2, api_keys=("first",)) as running:
        exec(compile(example.replace("http://127.0.0.1:8000", running.url), str(PAGE), "exec"), {})
    citation = capsys.readouterr().out.splitlines()[-1]
    assert citation.endswith("lift.md document:0#char=0,32")


def test_a_large_corpus_is_narrowed_to_documents_that_match(monkeypatch):
    documents = [Document(str(n), f"flat {n} has a {name}") for n, name in enumerate("abzc")]
    assert tenants.DocumentIndex(documents).matching("z") == documents
    monkeypatch.setattr(tenants, "MAX_CHARACTERS", 10)
    monkeypatch.setattr(tenants, "BEST_PASSAGES", 2)
    index = tenants.DocumentIndex(documents)
    assert [each.name for each in index.matching("who has the z or the c")] == ["2", "3"]
    assert index.matching("nothing?") == documents[:2]


def test_files_become_documents_with_pages(server):
    def read(data, title, status=200):
        answer = httpx.post(
            f"{server.url}/v1/documents/text",
            params={"title": title},
            content=data,
            headers={"Authorization": "Bearer first"},
        )
        assert answer.status_code == status
        return answer.json()

    made = read(text_pdf(["the inn"], ["the lift is old and near"]), "house.pdf")
    assert made == {
        "title": "house.pdf",
        "text": "the inn\n\nthe lift is old and near",
        "pages": [0, 9],
    }
    with user(server) as client:
        [choice] = ask(client, documents=[made], **repeat("The lift is old")).choices
    [citation] = choice.message.annotations
    assert citation.url_citation.model_dump()["pages"] == [2, 2]
    assert TABLE in read(docx(), "prices.docx")["text"]
    assert "damaged" not in read(b"a,b\n1,2\n", "t.csv")["text"]
    for data, title, words in [
        (b"", "a.txt", "a.txt is empty"),
        (b"a\0b", "../../etc/passwd", "is a binary file; can be read: text"),
        (gzip.compress(b"a" * (17 << 20)), "a.txt.gz", "more than 16 MB"),
    ]:
        assert words in read(data, title, 400)["error"]["message"]


@pytest.mark.parametrize("pages", [[1], [0, 5, 5], [0, 9, 5], []])
def test_wrong_pages_are_refused(client, pages):
    if not pages:
        assert ask(client, documents=[{"text": ZOO, "pages": pages}])
        return
    with pytest.raises(openai.BadRequestError, match="pages must rise from 0"):
        ask(client, documents=[{"text": ZOO, "pages": pages}])


@pytest.mark.parametrize("keys", [(), ("first", "second")])
def test_a_preloaded_corpus_needs_no_prefill(keys):
    engine = tiny_engine(max_batch=4)
    engine.model.prefixes.use(max_rows=20_000)
    corpus = (Document("zoo.md", ZOO * 9),)
    settings = ServerSettings(api_keys=keys, corpus=corpus)
    reports = []
    assert preload(engine, settings, reports.append)
    assert re.fullmatch(r"preload: 0 of \d+ tokens of the corpus", reports[0])
    with serving(engine, api_keys=keys, corpus=corpus) as running:
        for key in keys or ("none",):
            with user(running, key) as client:
                usage = client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": QUESTION}], **GREEDY
                ).usage
            assert usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens // 2


def test_passages_that_depend_on_the_question_are_not_preloaded():
    long = (Document("long.txt", LONG["text"]),)
    engine = tiny_engine(max_batch=4)
    assert not preload(engine, ServerSettings(corpus=long), lambda text: None)
    short = (Document("zoo.md", ZOO * 9),)
    assert not preload(engine, ServerSettings(corpus=short, document_tokens=64), lambda text: None)


def test_an_automatic_context_uses_passages_of_documents_that_fit():
    engine = tiny_engine(max_batch=4)
    text = FILLER * 6 + ZOO + FILLER * 6
    with serving(engine, document_tokens=128) as running, user(running, "none") as client:
        used = ask(client, documents=[text]).usage.prompt_tokens
    whole = document_prompt(engine, QUESTION, [Document("1", text)], SamplingParams(max_tokens=24))
    assert whole.whole
    assert used < whole.tokens
