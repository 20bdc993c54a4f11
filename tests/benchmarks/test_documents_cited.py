"""How answers from real files are scored, and which commands a newcomer types."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.documents.cite import covers, find, is_cited
from benchmarks.documents.collect import entries
from benchmarks.newcomer import blocks, missing
from graft.documents.formats import HTML, MAIL, OFFICE

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.md"


def test_questions_are_about_thirty_files_of_ten_formats():
    names = [entry["name"] for entry in entries()]
    assert len(set(names)) == len(names) == 30
    formats = Counter(Path(name).suffix for name in names)
    assert len(formats) >= 10
    assert {".pdf", *OFFICE, *HTML, *MAIL, ".csv", ".json", ".log", ".py"} >= set(formats)
    paged = [entry for entry in entries() if entry["name"].endswith((".pdf", ".pptx"))]
    assert all(asked["page"] > 0 for entry in paged for asked in entry["questions"])
    assert sum(len(entry["questions"]) for entry in entries()) == 60


def test_a_sentence_is_found_whatever_stands_between_its_words():
    text = "# Posix compliance,\n# split() and\n> more.  Other"
    start, end = find("posix compliance, split() and more", text)
    assert text[start:end] == "Posix compliance,\n# split() and\n> more"
    with pytest.raises(SystemExit, match="not in the document"):
        find("posix split", text)


def test_passages_in_a_row_cover_a_sentence():
    passages = [
        {"document": "a", "start": 0, "end": 10},
        {"document": "b", "start": 0, "end": 99},
        {"document": "a", "start": 10, "end": 20},
        {"document": "a", "start": 25, "end": 30},
    ]
    assert covers(passages, "a", (5, 20))
    assert not covers(passages, "a", (5, 21))
    assert not covers(passages, "a", (22, 26))
    assert not covers(passages, "c", (5, 6))


def test_a_citation_has_the_document_and_the_page():
    def message(title, **pages):
        return {"annotations": [{"url_citation": {"title": title, **pages}}]}

    assert is_cited(message("a"), "a", None)
    assert is_cited(message("a", pages=[2, 3]), "a", 3)
    assert not is_cited(message("a", pages=[2, 3]), "a", 4)
    assert not is_cited(message("a"), "a", 3)
    assert not is_cited(message("b", pages=[3, 3]), "a", 3)
    assert not is_cited({"annotations": []}, "a", None)


def test_the_newcomer_types_the_commands_of_the_page():
    commands, snippets = blocks(QUICKSTART)
    assert len(snippets) == 4
    typed = [line for line in commands if line.startswith("graft") and not missing(line, None)]
    assert [line.split()[1] for line in typed] == ["run", "serve"]
    assert len([line for line in commands if missing(line, None)]) == 7
    assert missing("graft run A --model FILE.gguf", Path("file")) is None
