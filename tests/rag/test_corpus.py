"""Passages: found by BM25, read from files."""

import gzip
import json
import re

import pytest
from tiny_pdf import text_pdf

from graft.errors import InputError
from graft.rag.corpus import Bm25Corpus, Passage
from graft.rag.corpus_files import read_corpus, read_passages

PASSAGES = [
    Passage("a", "The lift was installed in 2011.", "Main entrance"),
    Passage("b", "A bed lift for the surgical wing.", "Surgical wing"),
    Passage("c", "Payment is due within thirty days.", "Payment"),
]


def test_best_passages_come_first_with_ids_and_scores():
    hits = Bm25Corpus(PASSAGES).search("the surgical lift", 2)
    assert [hit.passage.id for hit in hits] == ["b", "a"]
    assert hits[0].score > hits[1].score > 0


def test_titles_are_searched_too():
    assert Bm25Corpus(PASSAGES).search("main entrance", 3)[0].passage.id == "a"


@pytest.mark.parametrize("query", ["", "zebra", "?!"])
def test_unrelated_passages_are_not_found(query):
    assert Bm25Corpus(PASSAGES).search(query, 3) == []


def test_equal_scores_keep_the_order_of_the_corpus():
    twins = [Passage(str(n), "the same words here") for n in range(4)]
    assert [h.passage.id for h in Bm25Corpus(twins).search("words", 3)] == ["0", "1", "2"]


def test_repeated_id_is_refused():
    with pytest.raises(InputError, match="two passages have the id 'a'"):
        Bm25Corpus([PASSAGES[0], PASSAGES[0]])
    with pytest.raises(InputError, match="no passages"):
        Bm25Corpus([])


def test_records_have_the_field_names_of_published_corpora(tmp_path):
    rows = [
        {"id": 7, "title": "T", "text": " one "},
        {"_id": "x", "contents": "two"},
        {"title": "U", "paragraph_text": "three"},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = list(read_passages([tmp_path / "p.jsonl"]))
    assert found[:2] == [Passage("7", "one", "T"), Passage("x", "two")]
    assert (found[2].text, found[2].title) == ("three", "U")
    assert re.fullmatch("[a-z2-7]{12}", found[2].id)


def test_dprs_wikipedia_is_read_as_it_is_published(tmp_path):
    rows = (
        'id\ttext\ttitle\n1\t"Aaron is a ""prophet"", high priest"\tAaron\n2\tplain text\tB "c"\n'
    )
    with gzip.open(tmp_path / "psgs_w100.tsv.gz", "wt") as file:
        file.write(rows)
    assert list(read_passages([tmp_path / "psgs_w100.tsv.gz"])) == [
        Passage("1", 'Aaron is a "prophet", high priest', "Aaron"),
        Passage("2", "plain text", 'B "c"'),
    ]


def test_a_table_without_texts_is_a_document_and_a_broken_one_is_refused(tmp_path):
    (tmp_path / "other.tsv").write_text("year\tlift\n2011\tA1\n")
    [passage] = read_passages([tmp_path / "other.tsv"])
    assert (passage.title, passage.text) == ("other", "year\tlift\n2011\tA1")
    (tmp_path / "broken.tsv").write_text("id\ttext\ttitle\n1\tonly a text\n")
    with pytest.raises(InputError, match="line 2, has 2 columns instead of 3"):
        list(read_passages([tmp_path / "broken.tsv"]))


def test_documents_are_split_into_passages(tmp_path):
    (tmp_path / "long.md").write_text(
        "# All about words\n\n" + "\n\n".join(f"Paragraph {n}. " + "word " * 60 for n in range(6))
    )
    (tmp_path / "short.txt").write_text("Short.")
    found = list(read_passages([tmp_path]))
    assert [each.title for each in (found[0], found[-1])] == ["All about words", "short"]
    assert all(len(each.text.split()) <= 100 for each in found)
    assert len(list(read_passages([tmp_path], words=20))) > len(found)


def test_long_records_are_split_and_keep_their_ids(tmp_path):
    row = {"id": "a", "text": "word " * 150}
    (tmp_path / "p.jsonl").write_text(json.dumps(row))
    assert [each.id for each in read_passages([tmp_path])] == ["a#1", "a#2"]


def test_duplicates_are_dropped_and_repeated_ids_refused(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.txt").write_text("The same words.")
    assert len(list(read_passages([tmp_path]))) == 1
    rows = [{"id": 1, "text": "one"}, {"id": 1, "text": "two"}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=r"line 2: another passage has the id '1'"):
        list(read_passages([tmp_path / "p.jsonl"]))


@pytest.mark.parametrize("row", ['{"title": "no text"}', '"a string"', '{"text": "  "}'])
def test_record_without_text_is_refused_with_its_line(tmp_path, row):
    (tmp_path / "p.jsonl").write_text(row)
    with pytest.raises(InputError, match="line 1 is not a passage: it needs a field text"):
        read_corpus([tmp_path / "p.jsonl"])


def test_passages_of_documents_name_their_file_and_page(tmp_path):
    (tmp_path / "lift.pdf").write_bytes(text_pdf(["The lift is old."], ["The roof leaks."]))
    (tmp_path / "short.txt").write_text("Short.")
    (tmp_path / "p.jsonl").write_text('{"text": "A record."}')
    found = {each.text: each.source for each in read_passages([tmp_path], words=4)}
    assert found["The roof leaks."] == "lift.pdf, page 2"
    assert (found["Short."], found["A record."]) == ("short.txt", "")
