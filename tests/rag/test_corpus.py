"""Passages: found by BM25, read from files."""

import json

import pytest

from graft.errors import InputError
from graft.rag.corpus import Bm25Corpus, Passage
from graft.rag.corpus_files import read_corpus, read_passages

PASSAGES = [
    Passage("a", "The lift was installed in 2011.", "Main entrance"),
    Passage("b", "A bed lift for the surgical wing.", "Surgical wing"),
    Passage("c", "Payment is due within thirty days.", "Payment"),
]


def test_the_best_come_first_with_their_ids_and_scores():
    hits = Bm25Corpus(PASSAGES).search("the surgical lift", 2)
    assert [hit.passage.id for hit in hits] == ["b", "a"]
    assert hits[0].score > hits[1].score > 0


def test_titles_are_searched_too():
    assert Bm25Corpus(PASSAGES).search("main entrance", 3)[0].passage.id == "a"


@pytest.mark.parametrize("query", ["", "zebra", "?!"])
def test_what_has_nothing_in_common_is_not_found(query):
    assert Bm25Corpus(PASSAGES).search(query, 3) == []


def test_equal_scores_keep_the_order_of_the_corpus():
    twins = [Passage(str(n), "the same words here") for n in range(4)]
    assert [h.passage.id for h in Bm25Corpus(twins).search("words", 3)] == ["0", "1", "2"]


def test_an_id_must_be_one_passage():
    with pytest.raises(InputError, match="two passages have the id 'a'"):
        Bm25Corpus([PASSAGES[0], PASSAGES[0]])
    with pytest.raises(InputError, match="no passages"):
        Bm25Corpus([])


def test_records_are_passages_by_the_names_that_corpora_use(tmp_path):
    rows = [
        {"id": 7, "title": "T", "text": " one "},
        {"_id": "x", "contents": "two"},
        {"title": "U", "paragraph_text": "three"},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = list(read_passages([tmp_path / "p.jsonl"]))
    assert found == [Passage("7", "one", "T"), Passage("x", "two"), Passage("3", "three", "U")]


def test_documents_are_cut_into_passages_named_after_them(tmp_path):
    (tmp_path / "long.md").write_text(
        "\n\n".join(f"Paragraph {n}. " + "word " * 60 for n in range(6))
    )
    (tmp_path / "short.txt").write_text("Short.")
    found = list(read_passages([tmp_path]))
    assert [each.id for each in found][-1] == "short.txt#1"
    assert found[0].id == "long.md#1"
    assert found[0].title == "long.md"
    assert all(len(each.text) <= 700 for each in found)


@pytest.mark.parametrize("row", ['{"title": "no text"}', '"a string"', '{"text": "  "}'])
def test_a_record_without_text_is_refused_by_its_place(tmp_path, row):
    (tmp_path / "p.jsonl").write_text(row)
    with pytest.raises(InputError, match="line 1 is no passage: it needs a field text"):
        read_corpus([tmp_path / "p.jsonl"])
