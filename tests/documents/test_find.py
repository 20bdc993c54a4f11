import os

import pytest

from graft.documents import read_documents
from graft.documents.find import find_files
from graft.errors import InputError


@pytest.fixture
def folder(tmp_path):
    files = ["10.md", "2.md", "sub/note.txt", "sub/deep/note.txt", ".hidden.md", ".git/config"]
    for name in [*files, "style.css", "logo.png"]:
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")
    return tmp_path / "docs"


def names(paths):
    return [document.name for document in read_documents(paths)]


def test_a_folder_is_read_in_natural_order_without_hidden_files(folder):
    found = names([folder])
    assert sorted(found) == ["10.md", "2.md", "sub/deep/note.txt", "sub/note.txt"]
    assert found.index("2.md") < found.index("10.md")


def test_scripts_are_read_unless_they_belong_to_web_pages(folder):
    for name in ("main.js", "node_modules/left/pad.js", "__pycache__/main.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("let a = 1;")
    assert [name for name in names([folder]) if "a" in name] == ["main.js"]
    (folder / "index.html").write_text("<p>Hello.</p>")
    assert "main.js" not in names([folder])


def test_patterns_reach_into_folders(folder, monkeypatch):
    assert names([f"{folder}/*.md"]) == ["2.md", "10.md"]
    assert names([f"{folder}/**/*.txt"]) == ["deep/note.txt", "note.txt"]
    monkeypatch.setenv("HOME", str(folder))
    assert names(["~/*.md"]) == ["2.md", "10.md"]
    assert names(["~/10.md"]) == ["10.md"]


def test_a_file_named_like_a_pattern_is_that_file(folder):
    (folder / "note[1].txt").write_text("brackets")
    assert names([folder / "note[1].txt"]) == ["note[1].txt"]


def test_file_named_twice_is_found_once(folder):
    link = folder / "link.md"
    link.symlink_to(folder / "2.md")
    assert names([folder / "2.md", f"{folder}/*.md", folder / "sub" / ".." / "2.md"]) == [
        "2.md",
        "10.md",
    ]


def test_names_are_unique(folder):
    shared = [folder / "sub" / "note.txt", folder / "sub" / "deep" / "note.txt", folder / "2.md"]
    assert names(shared) == ["sub/note.txt", "deep/note.txt", "2.md"]
    files = find_files([folder / "sub", folder / "sub" / "deep"])
    assert len({file.name for file in files}) == len(files) == 2


def test_pipes_and_broken_links_in_a_folder_are_skipped(folder):
    os.mkfifo(folder / "pipe.txt")
    (folder / "gone.txt").symlink_to(folder / "nothing")
    assert len(names([folder])) == 4
    assert names([f"{folder}/*.[mt]*"]) == ["2.md", "10.md"]


def test_unreadable_files_of_a_folder_are_skipped_with_one_warning(folder, caplog):
    for i in range(5):
        (folder / f"data{i}.bin").write_bytes(b"\0\1\2")
    assert len(names([folder])) == 4
    [warning] = caplog.records
    assert "skipped 5 files" in warning.getMessage()
    assert "data0.bin is a binary file" in warning.getMessage()
    assert warning.getMessage().count("\n") == 0
    assert "data4.bin" not in warning.getMessage()


def test_a_file_named_itself_must_be_readable(folder):
    (folder / "data.bin").write_bytes(b"\0\1\2")
    with pytest.raises(InputError, match="data.bin is a binary file"):
        read_documents([folder, folder / "data.bin"])


@pytest.mark.parametrize("given", ["no-such-*.pdf", "nothing/**/*.md", "a\0b"])
def test_nothing_found_is_refused_in_one_line(given):
    with pytest.raises(InputError, match="no file matches|not a valid path") as refusal:
        read_documents([given])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("given", ["~nobody-at-all/x", "nothing.pdf", "x" * 5000])
def test_missing_file_is_refused(given):
    with pytest.raises(InputError, match="does not exist|cannot be read: File name too long"):
        read_documents([given])


def test_folders_without_documents_are_refused(tmp_path):
    with pytest.raises(InputError, match="has no documents"):
        read_documents([tmp_path])
    (tmp_path / "a.bin").write_bytes(b"\0")
    with pytest.raises(InputError, match="none of 1 files can be read: .*a.bin is a binary"):
        read_documents([tmp_path])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(folder):
    (folder / "2.md").chmod(0)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        read_documents([folder / "2.md"])
