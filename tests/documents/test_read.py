import pytest

from graft.documents import read_document
from graft.errors import InputError


def write(folder, data, name="note.txt"):
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("naïve – 5 €\n".encode(), "naïve – 5 €\n"),
        (b"\xef\xbb\xbfwith BOM", "with BOM"),
        ("Notepad, 日本".encode("utf-16"), "Notepad, 日本"),
        (b"one\r\ntwo\rthree\n", "one\ntwo\nthree\n"),
        ("日本語の文書".encode(), "日本語の文書"),
    ],
)
def test_text_is_decoded(tmp_path, data, text):
    document = read_document(write(tmp_path, data))
    assert (document.name, document.text) == ("note.txt", text)


def test_western_one_byte_text_is_read_with_a_warning(tmp_path, caplog):
    path = write(tmp_path, "The café opens at “nine”.".encode("cp1252"))
    assert read_document(path).text == "The café opens at “nine”."
    assert "not UTF-8" in caplog.text


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.txt", b"", "is empty"),
        ("blank.md", b" \n\t\n", "is empty"),
        ("image.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary"),
        ("noise.txt", bytes(range(1, 256)) * 4, "not UTF-8"),
        ("cyrillic.txt", "Договор на обслуживание".encode("cp1251"), "not UTF-8"),
        ("cut.txt", "日本語".encode("utf-16")[:-1], "not UTF-8"),
        ("nul.txt", b"words " * 20000 + b"\0", "binary"),
    ],
)
def test_binary_files_are_refused_in_one_line(tmp_path, name, data, message):
    with pytest.raises(InputError, match=message) as refusal:
        read_document(write(tmp_path, data, name))
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_document(tmp_path / "nothing.txt")
    with pytest.raises(InputError, match="is a folder"):
        read_document(tmp_path)
    with pytest.raises(InputError, match="not a valid path"):
        read_document("a\0b")
