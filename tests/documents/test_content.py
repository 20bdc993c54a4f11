import gzip

import pytest
from tiny_pdf import text_pdf

from graft.documents import content, read_document
from graft.documents.formats import READABLE
from graft.errors import InputError


def write(folder, data, name):
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt.gz", b"Hello.\n"),
        ("a.html.gz", b"<p>Hello.</p>"),
        ("a.pdf.gz", text_pdf(["Hello."])),
        ("a.gz", b"<!doctype html><p>Hello."),
    ],
)
def test_gzipped_documents_are_read(tmp_path, name, data):
    document = read_document(write(tmp_path, gzip.compress(data), name))
    assert (document.name, document.text.strip()) == (name, "Hello.")


@pytest.mark.parametrize(
    "data", [gzip.compress(b"words " * 99, mtime=0)[:-9], b"\x1f\x8b\x08 not really"]
)
def test_a_damaged_gzip_file_is_refused(tmp_path, data):
    with pytest.raises(InputError, match="a.txt.gz is a damaged gzip file"):
        read_document(write(tmp_path, data, "a.txt.gz"))


def test_decompressed_size_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "MAX_BYTES", 1 << 20)
    bomb = write(tmp_path, gzip.compress(b"a " * (1 << 20)), "bomb.txt.gz")
    for path in (bomb, write(tmp_path, b"a " * (1 << 20), "long.txt")):
        with pytest.raises(InputError, match="has more than 1 MB, the maximum"):
            read_document(path)
    assert len(read_document(write(tmp_path, b"a" * (1 << 20), "most.txt")).text) == 1 << 20


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("all.zip", b"PK\x03\x04rest", "is a zip archive"),
        ("old.doc", b"\xd0\xcf\x11\xe0rest", "is an old or encrypted Office file"),
        ("paper.ps", b"%!PS-Adobe-3.0\n", "is a PostScript file"),
        ("archive.tar.gz", gzip.compress(b"name\0\0\0\0", mtime=0), "is a binary file"),
    ],
)
def test_other_formats_are_named_and_refused(tmp_path, name, data, message):
    with pytest.raises(InputError, match=message) as refusal:
        read_document(write(tmp_path, data, name))
    assert READABLE in str(refusal.value)
