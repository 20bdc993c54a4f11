from concurrent.futures import ThreadPoolExecutor

import pytest
from tiny_pdf import scanned_pdf, text_pdf

from graft.documents import read_document
from graft.errors import InputError


def write(folder, data, name="paper.pdf"):
    path = folder / name
    path.write_bytes(data)
    return path


def test_pages_are_read_in_order_with_their_numbers(tmp_path):
    data = text_pdf(["First page.", "Its second line."], [], ["Third page (after a blank one)."])
    document = read_document(write(tmp_path, data))
    assert document.name == "paper.pdf"
    assert document.text == ("First page.\nIts second line.\n\n\n\nThird page (after a blank one).")
    first, blank, third = document.pages
    assert (first, document.text[third:]) == (0, "Third page (after a blank one).")
    assert document.pages_of(0, 5) == (1, 1)
    assert document.pages_of(blank, blank + 1) == (2, 2)
    assert document.pages_of(0, len(document.text)) == (1, 3)
    assert document.pages_of(third, len(document.text)) == (3, 3)


def test_only_pdfs_have_pages(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("words")
    assert read_document(path).pages_of(0, 3) is None


def test_words_broken_at_a_line_end_are_joined(tmp_path):
    lines = ["A web-based tool. The infor-", "mation is on a web-", "based page."]
    text = read_document(write(tmp_path, text_pdf(lines))).text
    assert "The information is" in text
    assert "on a web-based page" in text


def test_pdf_is_recognised_without_its_suffix(tmp_path):
    assert read_document(write(tmp_path, text_pdf(["Hello."]), "x.txt")).text == "Hello."
    shifted = b"\n\n" + text_pdf(["Hello."])
    assert read_document(write(tmp_path, shifted, "x.html")).text == "Hello."


def test_a_text_about_pdf_is_text(tmp_path):
    text = "Such files begin with %PDF-1.7 and a line of bytes."
    assert read_document(write(tmp_path, text.encode(), "note.md")).text == text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (scanned_pdf(3), "has no text layer .3 pages.*ocrmypdf"),
        (scanned_pdf(), "has no text layer .its page"),
        (text_pdf([]), "has no text layer"),
        (text_pdf(["secret"], encrypted=True), "is encrypted.*qpdf"),
        (text_pdf(), "not a complete PDF .no pages"),
        (text_pdf(["cut off"])[:120], "not a complete PDF"),
        (b"%PDF-1.7", "not a complete PDF"),
        (b"", "is empty"),
    ],
)
def test_pdf_without_text_is_refused_in_one_line(tmp_path, data, message):
    with pytest.raises(InputError, match=message) as refusal:
        read_document(write(tmp_path, data))
    assert "paper.pdf" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_mostly_scanned_pdf_is_read_with_a_warning(tmp_path, caplog):
    pages = [["The only words."], [], []]
    assert read_document(write(tmp_path, text_pdf(*pages))).text.strip() == "The only words."
    assert "2 of 3 pages have no text layer" in caplog.text


def test_threads_may_read_at_the_same_time(tmp_path):
    paths = [write(tmp_path, text_pdf([f"Number {i}."] * 30), f"{i}.pdf") for i in range(8)]
    with ThreadPoolExecutor(4) as threads:
        texts = [document.text for document in threads.map(read_document, paths)]
    assert all(text == "\n".join([f"Number {i}."] * 30) for i, text in enumerate(texts))
