"""What the commands say when documents are longer than the model reads."""

import json

import pytest
from tiny_pdf import text_pdf

from graft.cli.documents import joined


@pytest.fixture
def report(tmp_path):
    """40 pages of 30 lines; pages 7 and 31 speak of zebras."""
    pages = [[f"Page {i} line {j} has nothing to tell you." for j in range(30)] for i in range(40)]
    pages[6][3] = pages[30][5] = "The zebra lives in flat 7."
    path = tmp_path / "report.pdf"
    path.write_bytes(text_pdf(*pages))
    return path


def test_the_passages_taken_are_named_in_one_line(cli, engine, report):
    engine.context_length = 1024
    done = cli("run", "Where is the zebra?", "--doc", report, "--max-tokens", 64)
    assert done.exit_code == 0, done.output
    assert done.stdout == "Four hours.\n"
    line, _footer = done.stderr.splitlines()
    assert line.startswith("report.pdf has about ")
    assert "fake reads 1,024 with the answer: answering from " in line
    assert "passages: pages 6-7, 30-32; --full insists on all of it" in line
    [message] = engine.calls[0][0]
    assert message["content"].count("The zebra lives in flat 7.") == 2
    assert len(message["content"].split()) <= 1024 - 64


def test_json_says_the_same_as_data(cli, engine, report):
    engine.context_length = 1024
    done = cli("run", "Where is the zebra?", "--doc", report, "--json")
    told = json.loads(done.stdout)["documents"]
    assert done.stderr == ""
    assert told["whole"] is False
    assert told["matched"] is True
    assert told["tokens"] > 1024
    assert 0 < len(told["passages"]) < told["total_passages"]
    pages = [each.pop("pages") for each in told["passages"]]
    assert any(first <= 7 <= last for first, last in pages)
    assert all(each["start"] < each["end"] for each in told["passages"])
    assert {each["document"] for each in told["passages"]} == {"report.pdf"}


def test_whole_documents_are_not_spoken_of(cli, engine, document):
    done = cli("run", "How fast?", "--doc", document)
    assert "passages" not in done.stderr
    told = json.loads(cli("run", "How fast?", "--doc", document, "--json").stdout)["documents"]
    assert told["whole"] is True
    assert told["passages"] == [
        {"document": "contract.md", "start": 0, "end": 43, "pages": None},
    ]


def test_without_documents_json_has_none(cli, engine):
    assert "documents" not in json.loads(cli("run", "How fast?", "--json").stdout)


def test_full_refuses_in_one_line(cli, engine, report):
    engine.context_length = 1024
    done = cli("run", "Where is the zebra?", "--doc", report, "--full")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: the documents have about ")
    assert "fake takes 1,024" in done.stderr
    assert done.stderr.count("\n") == 1
    assert engine.calls == []


def test_several_documents_are_named_with_their_places(cli, engine, report, tmp_path):
    engine.context_length = 1024
    (tmp_path / "zoo.txt").write_text("Here is filler. " * 200 + "A zebra! " + "More of it. " * 200)
    done = cli("run", "zebra", "--doc", tmp_path, "--max-tokens", 64)
    assert done.stderr.startswith("2 documents have about ")
    assert "report.pdf pages " in done.stderr
    assert "; zoo.txt characters " in done.stderr


def test_a_question_without_a_match_says_so(cli, engine, report):
    engine.context_length = 1024
    done = cli("run", "Elephants?", "--doc", report)
    assert "passages (the first ones: none has a word of the question): pages 1" in done.stderr


@pytest.mark.parametrize("pattern", ["*.pdf", "**/*.pdf"])
def test_folders_and_patterns_can_be_named(cli, engine, report, tmp_path, pattern):
    (tmp_path / "note.md").write_text("A note.")
    cli("run", "Where?", "--doc", tmp_path / "note.md", "--doc", f"{tmp_path}/{pattern}")
    content = engine.calls[0][0][0]["content"]
    assert content.index("Document note.md:") < content.index("Document report.pdf:")


def test_a_document_that_cannot_be_read_ends_in_one_line(cli, engine, tmp_path):
    path = tmp_path / "cut.pdf"
    path.write_bytes(b"%PDF-1.7\n")
    done = cli("run", "Where?", "--doc", path)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: document ")
    assert done.stderr.count("\n") == 1
    assert engine.loaded == []


def test_a_chat_selects_once_and_again_after_reset(cli, engine, report):
    engine.context_length = 1024
    asked = "Where is the zebra?\nElephants?\n/reset\nWhat does page 20 tell?\n"
    done = cli("chat", "--doc", report, "--max-tokens", 64, stdin=asked)
    assert done.exit_code == 0
    assert done.stderr.count("answering from") == 2
    assert done.stderr.count("later questions keep these passages") == 2
    first, second, third = (call[0] for call in engine.calls)
    assert second[0] == first[0]
    assert second[2]["content"] == "Elephants?"
    assert "zebra" in first[0]["content"]
    assert third[0]["content"] != first[0]["content"]
    assert len(first[0]["content"].split()) <= 1024 - 64 - 256


def test_a_chat_that_insists_on_all_is_refused_and_goes_on(cli, engine, report):
    engine.context_length = 1024
    done = cli("chat", "--doc", report, "--full", stdin="Where is the zebra?\n")
    assert done.exit_code == 0
    assert "error: the documents have about" in done.stderr
    assert engine.calls == []


def test_pages_in_a_row_are_one_span():
    assert joined([(1, 1), (2, 3), (3, 3), (7, 8)], gap=1) == [(1, 3), (7, 8)]
    assert joined([(0, 10), (10, 20), (21, 30)], gap=0) == [(0, 20), (21, 30)]
