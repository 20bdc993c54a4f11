"""Office files, books and e-mail become Markdown whose sentences can be quoted."""

import gzip
import sys
from email.message import EmailMessage

import pytest
from tiny_office import HEADING, SENTENCE, TABLE, docx, epub, odt, pptx, rtf, xlsx

from graft.documents import read_document, read_documents, zipped
from graft.documents.formats import MAIL, OFFICE
from graft.documents.read import parse_document
from graft.errors import InputError, MissingDependencyError

FILES = {".docx": docx, ".pptx": pptx, ".xlsx": xlsx, ".odt": odt, ".epub": epub, ".rtf": rtf}
LIMIT = 1 << 20


def mail(*, html=False):
    message = EmailMessage()
    message["From"], message["To"] = "Ann <ann@example.org>", "Bob <bob@example.org>"
    message["Subject"] = "Größe"
    body = f"<p>{SENTENCE.replace('lift', '<b>lift</b>')} in Köln</p>"
    if html:
        message.set_content(body, subtype="html")
    else:
        message.set_content(f"{SENTENCE} in Köln\n")
    message.add_attachment(b"x", maintype="text", subtype="plain", filename="plan.txt")
    return bytes(message)


def test_every_listed_format_is_read_here():
    assert set(FILES) == set(OFFICE)


@pytest.mark.parametrize("suffix", FILES)
def test_headings_sentences_and_tables_are_kept(suffix):
    text = parse_document(FILES[suffix](), f"a{suffix}", LIMIT).text
    assert HEADING in text
    assert (TABLE if suffix == ".xlsx" else SENTENCE) in text
    if suffix in (".docx", ".odt", ".epub"):
        assert f"# {HEADING}" in text
        assert TABLE in text


def test_books_and_open_documents_need_no_package_and_lose_no_text(monkeypatch):
    monkeypatch.setitem(sys.modules, "kreuzberg", None)
    text = parse_document(odt(), "a.odt", LIMIT).text
    assert text.strip() == f"# {HEADING}\n\n{SENTENCE}\n\n{TABLE}"
    book = parse_document(epub(), "a.epub.gz", LIMIT).text
    assert book.index(SENTENCE) < book.index(TABLE) < book.index("The end.")
    monkeypatch.setattr(zipped, "MAX_BYTES", 100)
    with pytest.raises(InputError, match="content.xml has more than 0 MB"):
        parse_document(odt(), "a.odt", LIMIT)


def test_slides_are_pages():
    document = parse_document(pptx(), "talk.PPTX", LIMIT)
    assert document.text.split("\n\n") == [f"## {HEADING}", f"## {SENTENCE}"]
    start = document.text.index(SENTENCE)
    assert document.pages_of(start, start + len(SENTENCE)) == (2, 2)


@pytest.mark.parametrize("html", [False, True])
def test_an_email_has_headers_body_and_names_of_attachments(html):
    assert parse_document(mail(html=html), "a.eml", LIMIT).text == (
        "From: Ann <ann@example.org>\nTo: Bob <bob@example.org>\nSubject: Größe\n"
        f"Attachments: plan.txt\n\n{SENTENCE} in Köln"
    )


def test_a_mailbox_has_all_its_messages():
    box = b"From ann Mon Mar  2\n" + mail() + b"\nFrom bob Tue Mar  3\n" + mail(html=True)
    assert parse_document(box, "in.mbox", LIMIT).text.count(SENTENCE) == 2
    assert set(MAIL) == {".eml", ".mbox"}


@pytest.mark.parametrize("charset", ["no-such-charset", "ascii"])
def test_an_email_with_a_wrong_charset_is_read(charset):
    data = f"Content-Type: text/plain; charset={charset}\n\n{SENTENCE}".encode() + b"\xff"
    assert SENTENCE in parse_document(data, "a.eml", LIMIT).text


@pytest.mark.parametrize("suffix", [each for each in FILES if each != ".rtf"])
def test_a_damaged_file_is_refused_in_one_line(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(FILES[suffix]()[:200])
    with pytest.raises(InputError, match=rf"a{suffix} cannot be read as {suffix}: ") as refusal:
        read_document(path)
    assert "\n" not in str(refusal.value)


def test_a_missing_reader_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kreuzberg", None)
    (tmp_path / "a.docx").write_bytes(docx())
    with pytest.raises(MissingDependencyError, match=r"pip install 'graftlm\[formats\]'"):
        read_document(tmp_path / "a.docx")
    (tmp_path / "b.txt").write_text("Hello.")
    assert [each.name for each in read_documents([tmp_path])] == ["b.txt"]


def test_a_file_may_not_decompress_to_more_than_its_limit():
    with pytest.raises(InputError, match="has more than 1 MB"):
        parse_document(gzip.compress(b"a " * LIMIT), "a.txt.gz", LIMIT)
