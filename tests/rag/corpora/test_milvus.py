"""Corpora in a file of Milvus Lite."""

import json

import pytest
from daily import daily

from graft.errors import InputError
from graft.rag.corpora import milvus
from graft.rag.corpora.engines import engine_parts
from graft.rag.corpora.milvus import Address, MilvusCorpus, as_address
from graft.rag.corpora.named import open_corpus

pytest.importorskip("pymilvus", reason="pymilvus is not installed: pip install 'graftlm[milvus]'")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")

ROWS = [
    {"id": "a", "title": "Main entrance", "text": "The lift was installed in 2011."},
    {"id": "b", "title": "Surgical wing", "text": "A bed lift since 2016."},
    {"id": "c", "title": "Payment", "text": "It is due within thirty days of the invoice."},
]


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return str(file)


@pytest.fixture
def address(tmp_path):
    return as_address(f"milvus:{tmp_path}/corpus.db#texts")


def make(address, rows, engine="hybrid"):
    return milvus.build(address, [rows], engine_parts(engine), 100, lambda *_: None)


def found(address, question, k=3):
    corpus = open_corpus([str(address)])
    assert isinstance(corpus, MilvusCorpus)
    return [hit.passage.id for hit in corpus.search(question, k)]


@pytest.mark.parametrize(
    "engine", daily(["bm25s", "static", "hybrid", "bm25s+dense:x+static"], "bm25s", "hybrid")
)
def test_passages_are_found_with_title_and_text(address, rows, engine):
    assert make(address, rows, engine) == 3
    corpus = open_corpus([str(address)])
    assert len(corpus) == 3
    best, *_ = corpus.search("surgical wing", 2)
    assert (best.passage.id, best.passage.title) == ("b", "Surgical wing")
    assert best.passage.text == ROWS[1]["text"]
    assert best.score > 0
    assert corpus.search("", 2) == []


def test_unrelated_passages_are_not_found(address, rows):
    make(address, rows)
    assert found(address, "zzzz") == []


def test_best_passages_come_first_by_bm25(address, rows):
    make(address, rows, "bm25s")
    assert found(address, "the surgical lift") == ["b", "a"]


def test_more_files_are_added_once(address, rows, tmp_path):
    make(address, rows)
    more = tmp_path / "more.jsonl"
    row = {"id": "d", "title": "Water", "text": "The city supplies water."}
    more.write_text("\n".join(map(json.dumps, [row, ROWS[0]])))
    for new in (1, 0):
        assert milvus.add(address, [str(more)], lambda *_: None) == new
        about, count, _ = milvus.state(address)
        assert (count, about.engines) == (4, ("bm25", "static"))
    assert found(address, "who supplies water", 1) == ["d"]


def test_rebuild_replaces_and_an_interruption_keeps_the_old(address, rows, tmp_path):
    make(address, rows)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"id": "n", "text": "new words"}))

    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        milvus.build(address, [str(other)], ("bm25",), 100, interrupted)
    assert found(address, "surgical", 1) == ["b"]
    assert milvus.listed(address) == [str(address)]
    make(address, str(other), "bm25s")
    assert found(address, "surgical") == []
    assert found(address, "new words") == ["n"]


def test_another_encoder_is_refused(address, rows, letters):
    make(address, rows)
    letters["shift"] = 5
    with pytest.raises(InputError, match="was built with another encoder static"):
        MilvusCorpus(address)
    with pytest.raises(InputError, match="was built with another encoder"):
        milvus.add(address, [rows], lambda *_: None)


def test_missing_and_foreign_collections_are_refused(address, rows):
    with pytest.raises(InputError, match="there is no collection texts at"):
        MilvusCorpus(address)
    from pymilvus import MilvusClient

    client = MilvusClient(address.uri)
    client.create_collection("texts", dimension=4)
    client.close()
    with pytest.raises(InputError, match="was not built by this version of Graft"):
        MilvusCorpus(address)
    with pytest.raises(InputError, match="is not Graft's; name another one"):
        make(address, rows)
    assert milvus.listed(address) == []


def test_unreachable_server_is_refused():
    with pytest.raises(InputError, match="Milvus at http://127.0.0.1:9 failed") as raised:
        MilvusCorpus(Address("http://127.0.0.1:9", "texts"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("milvus:/a/b.db#c", Address("/a/b.db", "c")),
        ("milvus:/a/b.db", Address("/a/b.db", "passages")),
        ("milvus:http://host:19530#c", Address("http://host:19530", "c")),
    ],
)
def test_addresses(name, expected):
    assert as_address(name) == expected


@pytest.mark.parametrize("name", ["milvus:", "milvus:#c", "milvus:http://root:secret@host#c"])
def test_wrong_addresses_are_refused(name):
    with pytest.raises(InputError) as raised:
        as_address(name)
    assert "secret" not in str(raised.value)


def test_token_comes_from_the_environment(monkeypatch):
    import pymilvus

    seen = []

    class Client:
        def __init__(self, uri, token):
            seen.append((uri, token))
            raise OSError("enough")

    monkeypatch.setattr(pymilvus, "MilvusClient", Client)
    monkeypatch.setenv("GRAFT_MILVUS_TOKEN", "root:secret")
    with pytest.raises(InputError, match="enough") as raised:
        MilvusCorpus(Address("https://host", "texts"))
    assert seen == [("https://host", "root:secret")]
    assert "secret" not in str(raised.value)
