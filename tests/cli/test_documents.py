"""Documents that are longer than the model's context."""

import json

import pytest
from tiny_pdf import text_pdf

from graft.cli.documents import merge_spans


@pytest.fixture
def report(tmp_path):
    """40 pages of 30 lines; pages 7 and 31 mention zebras."""
    pages = [[f"Page {i} line {j} has nothing to tell you." for j in range(30)] for i in range(40)]
    pages[6][3] = pages[30][5] = "The zebra lives in flat 7."
    path = tmp_path / "report.pdf"
    path.write_bytes(text_pdf(*pages))
    return path


def test_selected_passages_are_reported_in_one_line(cli, engine, report):
    engine.context_length = 1024
    done = cli("run", "Where is the zebra?", "--doc", report, "--max-tokens", 64)
    assert done.exit_code == 0, done.output
    assert done.stdout == "Four hours.\n"
    line, _footer = done.stderr.splitlines()
    assert line.startswith("report.pdf has about ")
    assert "the context of fake is 1,024 with the answer: using " in line
    assert "passages: pages 6-7, 30-32 (--full refuses instead)" in line
    [message] = engine.calls[0][0]
    assert message["content"].count("The zebra lives in flat 7.") == 2
    assert len(message["content"].split()) <= 1024 - 64


def test_json_has_the_selected_passages(cli, engine, report):
    engine.context_length = 1024
    done = cli("run", "Where is the zebra?", "--doc", report, "--json")
    selection = json.loads(done.stdout)["documents"]
    assert done.stderr == ""
    assert selection["whole"] is False
    assert selection["matched"] is True
    assert selection["tokens"] > 1024
    assert 0 < len(selection["passages"]) < selection["total_passages"]
    pages = [each.pop("pages") for each in selection["passages"]]
    assert any(first <= 7 <= last for first, last in pages)
    assert all(each["start"] < each["end"] for each in selection["passages"])
    assert {each["document"] for each in selection["passages"]} == {"report.pdf"}


def test_whole_documents_are_not_reported(cli, engine, document):
    done = cli("run", "How fast?", "--doc", document)
    assert "passages" not in done.stderr
    selection = json.loads(cli("run", "How fast?", "--doc", document, "--json").stdout)["documents"]
    assert selection["whole"] is True
    assert selection["passages"] == [
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


def test_several_documents_are_named_with_their_spans(cli, engine, report, tmp_path):
    engine.context_length = 1024
    (tmp_path / "zoo.txt").write_text("Here is filler. " * 200 + "A zebra! " + "More of it. " * 200)
    done = cli("run", "zebra", "--doc", tmp_path, "--max-tokens", 64)
    assert done.stderr.startswith("2 documents have about ")
    assert "report.pdf pages " in done.stderr
    assert "; zoo.txt characters " in done.stderr


def test_question_without_a_match_is_reported(cli, engine, report):
    engine.context_length = 1024
    done = cli("run", "Elephants?", "--doc", report)
    assert "passages (the first ones: none matches a word of the question): pages 1" in done.stderr


@pytest.mark.parametrize("pattern", ["*.pdf", "**/*.pdf"])
def test_folders_and_patterns_can_be_named(cli, engine, report, tmp_path, pattern):
    (tmp_path / "note.md").write_text("A note.")
    cli("run", "Where?", "--doc", tmp_path / "note.md", "--doc", f"{tmp_path}/{pattern}")
    content = engine.calls[0][0][0]["content"]
    assert content.index("Document note.md:") < content.index("Document report.pdf:")


def test_unreadable_document_is_refused_in_one_line(cli, engine, tmp_path):
    path = tmp_path / "cut.pdf"
    path.write_bytes(b"%PDF-1.7\n")
    done = cli("run", "Where?", "--doc", path)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: document ")
    assert done.stderr.count("\n") == 1
    assert engine.loaded == []


def test_chat_selects_passages_once_and_again_after_reset(cli, engine, report):
    engine.context_length = 1024
    asked = "Where is the zebra?\nElephants?\n/reset\nWhat is on page 20?\n"
    done = cli("chat", "--doc", report, "--max-tokens", 64, stdin=asked)
    assert done.exit_code == 0
    assert done.stderr.count(" passages: ") == 2
    assert done.stderr.count("later questions use the same passages") == 2
    first, second, third = (call[0] for call in engine.calls)
    assert second[0] == first[0]
    assert second[2]["content"] == "Elephants?"
    assert "zebra" in first[0]["content"]
    assert third[0]["content"] != first[0]["content"]
    assert len(first[0]["content"].split()) <= 1024 - 64 - 256


def test_chat_continues_after_full_is_refused(cli, engine, report):
    engine.context_length = 1024
    done = cli("chat", "--doc", report, "--full", stdin="Where is the zebra?\n")
    assert done.exit_code == 0
    assert "error: the documents have about" in done.stderr
    assert engine.calls == []


def test_adjacent_pages_are_one_span():
    assert merge_spans([(1, 1), (2, 3), (3, 3), (7, 8)], gap=1) == [(1, 3), (7, 8)]
    assert merge_spans([(0, 10), (10, 20), (21, 30)], gap=0) == [(0, 20), (21, 30)]
