"""Corpora on disk: built, searched, added to, damaged, interrupted."""

import json
import shutil

import numpy as np
import pytest

from graft.errors import InputError
from graft.rag.corpora import build as building
from graft.rag.corpora import engines
from graft.rag.corpora.build import add, build
from graft.rag.corpora.built import BuiltCorpus
from graft.rag.corpora.engines import engine_parts
from graft.rag.corpora.folder import MANIFEST, TEXT, read_manifest
from graft.rag.corpora.named import open_corpus
from graft.rag.corpus import Bm25Corpus
from graft.rag.corpus_files import read_passages

TEXTS = {
    "lift.md": "# The lifts\n\nThe lift at the main entrance was installed in 2011.",
    "wing.txt": "A bed lift serves the surgical wing since 2016.",
    "pay.txt": "Payment is due within thirty days of the invoice.",
}


def make(folder, files, engine="bm25s", words=100):
    return build(folder, [str(files)], engine_parts(engine), words, lambda *_: None)


def ids(hits):
    return [hit.passage.id for hit in hits]


def test_built_corpus_gives_the_hits_of_one_in_memory(tmp_path, files):
    make(tmp_path / "corpus", files)
    built, memory = BuiltCorpus(tmp_path / "corpus"), Bm25Corpus(list(read_passages([files])))
    assert len(built) == len(memory) == 3
    for question in ("the surgical lift", "main entrance", "when is payment due", "the lifts"):
        mine, theirs = built.search(question, 3), memory.search(question, 3)
        assert [hit.passage for hit in mine] == [hit.passage for hit in theirs]
        assert [h.score for h in mine] == pytest.approx([h.score for h in theirs])
    assert ids(built.search("lift", 1)) == ids(memory.search("lift", 1))


@pytest.mark.parametrize("engine", ["bm25s", "static", "hybrid", "bm25s+dense:x+static"])
def test_blank_query_finds_nothing(tmp_path, files, engine):
    make(tmp_path / "corpus", files, engine)
    assert BuiltCorpus(tmp_path / "corpus").search(" ", 3) == []


@pytest.mark.parametrize("question", ["", "?!", "zebra"])
def test_without_a_word_in_common_bm25_finds_nothing(tmp_path, files, question):
    make(tmp_path / "corpus", files)
    assert BuiltCorpus(tmp_path / "corpus").search(question, 3) == []


def test_vectors_rank_by_cosine_above_the_minimum(tmp_path, files):
    make(tmp_path / "corpus", files, "static")
    corpus = BuiltCorpus(tmp_path / "corpus")
    encoder = engines.find_encoder("static")
    passages = list(read_passages([files]))
    texts = [f"{each.title}\n{each.text}" for each in passages]
    cosines = encoder.encode_passages(texts) @ encoder.encode_question("surgical wing")
    hits = corpus.search("surgical wing", 3)
    assert [hit.score for hit in hits] == pytest.approx(sorted(cosines, reverse=True))
    assert hits[0].passage == passages[int(np.argmax(cosines))]
    assert len(corpus.search("zzzz", 3)) == 0


def test_several_engines_are_fused_by_rank(tmp_path, files):
    make(tmp_path / "corpus", files, "hybrid")
    hits = BuiltCorpus(tmp_path / "corpus").search("payment due", 3)
    assert "Payment" in hits[0].passage.text
    assert hits[0].score == pytest.approx(2 / 61)


def test_ids_are_stable_and_duplicates_are_dropped(tmp_path, files):
    corpus = tmp_path / "corpus"
    make(corpus, files, "hybrid")
    before = {each.id for each in BuiltCorpus(corpus)._texts}
    (files / "again.txt").write_text(TEXTS["wing.txt"])  # another title: another passage
    (files / "sub").mkdir()
    (files / "sub" / "pay.txt").write_text(TEXTS["pay.txt"])  # the same
    (files / "a_new.txt").write_text("Water is supplied by the city.")
    assert add(corpus, [str(files)], lambda *_: None) == 2
    assert read_manifest(corpus).passages == 5
    grown = BuiltCorpus(corpus)
    assert before < {each.id for each in grown._texts}
    assert "Water" in grown.search("who supplies water", 1)[0].passage.text
    shutil.rmtree(corpus)
    make(corpus, files, "hybrid")
    anew = BuiltCorpus(corpus)
    assert {each.id for each in anew._texts} == {each.id for each in grown._texts}
    for question in ("surgical lift", "water"):
        assert set(ids(anew.search(question, 5))) == set(ids(grown.search(question, 5)))


def test_an_interrupted_build_leaves_the_old_corpus(tmp_path, files, monkeypatch):
    corpus = tmp_path / "corpus"
    make(corpus, files)
    before = ids(BuiltCorpus(corpus).search("surgical lift", 3))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "write_manifest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(corpus, files, "static")
    with pytest.raises(KeyboardInterrupt):
        add(corpus, [str(files)], lambda *_: None)
    assert ids(BuiltCorpus(corpus).search("surgical lift", 3)) == before
    assert not list(tmp_path.glob(".*"))


def test_another_encoder_of_the_same_name_is_refused(tmp_path, files, letters):
    make(tmp_path / "corpus", files, "dense")
    letters["shift"] = 3
    with pytest.raises(InputError, match="was built with another encoder dense"):
        BuiltCorpus(tmp_path / "corpus")
    with pytest.raises(InputError, match="was built with another encoder"):
        add(tmp_path / "corpus", [str(files)], lambda *_: None)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: (c / TEXT).write_bytes((c / TEXT).read_bytes()[:-5]), "bytes instead of"),
        (lambda c: (c / TEXT).unlink(), "is missing"),
        (lambda c: shutil.rmtree(c / "bm25"), "is missing"),
        (lambda c: (c / MANIFEST).write_text("{"), "is damaged"),
        (lambda c: (c / MANIFEST).write_text('{"format": 99}'), "has format 99"),
        (lambda c: (c / MANIFEST).unlink(), "is not a corpus"),
    ],
)
def test_incomplete_and_damaged_corpora_are_refused(tmp_path, files, spoil, message):
    corpus = tmp_path / "corpus"
    make(corpus, files)
    spoil(corpus)
    with pytest.raises(InputError, match=message) as raised:
        BuiltCorpus(corpus)
    assert "graft index passages" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_damaged_passage_is_refused(tmp_path, files):
    corpus = tmp_path / "corpus"
    make(corpus, files)
    content = (corpus / TEXT).read_bytes()
    (corpus / TEXT).write_bytes(content.replace(b'{"id"', b'["id"'))
    with pytest.raises(InputError, match="is damaged: build it again"):
        BuiltCorpus(corpus).search("lift", 3)


def test_a_folder_with_other_things_is_not_replaced(tmp_path, files):
    with pytest.raises(InputError, match="exists and is not a corpus"):
        make(files, files)
    assert sorted(each.name for each in files.iterdir()) == sorted(TEXTS)


def test_passages_of_a_corpus_are_json_lines(tmp_path, files):
    count = make(tmp_path / "corpus", files)
    lines = (tmp_path / "corpus" / TEXT).read_text().splitlines()
    assert [json.loads(line)["title"] for line in lines] == ["The lifts", "pay", "wing"]
    assert make(tmp_path / "copy", tmp_path / "corpus" / TEXT) == count
    assert {e.id for e in BuiltCorpus(tmp_path / "copy")._texts} == {
        json.loads(line)["id"] for line in lines
    }
    assert read_manifest(tmp_path / "copy").about.words == 100


def test_corpora_are_opened_by_kind(tmp_path, files):
    make(tmp_path / "corpus", files)
    assert isinstance(open_corpus([tmp_path / "corpus"]), BuiltCorpus)
    assert isinstance(open_corpus([files]), Bm25Corpus)
    with pytest.raises(InputError, match="name it alone"):
        open_corpus([tmp_path / "corpus", files])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("bm25s", ("bm25",)),
        ("hybrid", ("bm25", "static")),
        ("bm25s+dense:a/b", ("bm25", "dense:a/b")),
    ],
)
def test_engines_by_name(name, parts):
    assert engine_parts(name) == parts


@pytest.mark.parametrize("name", ["", "faiss", "dense:", "bm25+bm25s"])
def test_other_engines_are_refused(name):
    with pytest.raises(InputError, match="engine"):
        engine_parts(name)
