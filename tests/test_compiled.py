"""Compiled kernels do not outlive a change of any source."""

import os

import pytest

from graft.compiled import FOLDERS, drop_stale


@pytest.fixture
def package(tmp_path):
    for folder in FOLDERS:
        (tmp_path / folder / "__pycache__").mkdir(parents=True)
        (tmp_path / folder / "code.py").write_text("")
    return tmp_path


def compile_in(package):
    for folder in FOLDERS:
        (package / folder / "__pycache__" / "code.kernel-1.py311.nbi").write_text("")
        (package / folder / "__pycache__" / "code.kernel-1.py311.1.nbc").write_text("")


def kernels(package):
    return list(package.rglob("*.nb[ci]"))


def check(package):
    drop_stale.__wrapped__(package)  # as another process would


def test_kernels_of_unknown_sources_are_dropped_once(package):
    compile_in(package)
    check(package)
    assert not kernels(package)
    compile_in(package)
    check(package)
    assert len(kernels(package)) == 2 * len(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_changed_or_new_source_drops_the_kernels_of_all_folders(package, folder):
    check(package)
    for change in ("changed", "new"):
        compile_in(package)
        source = package / folder / ("code.py" if change == "changed" else "more.py")
        source.write_text("x = 1")
        os.utime(source, ns=(1, 1))
        check(package)
        assert not kernels(package)


def test_other_files_do_not_count(package):
    check(package)
    compile_in(package)
    (package / "kernels" / "table.json").write_text("{}")
    check(package)
    assert kernels(package)


def test_a_package_that_cannot_be_written_is_left_alone(package, monkeypatch):
    compile_in(package)
    monkeypatch.setattr("pathlib.Path.unlink", lambda *_, **__: (_ for _ in ()).throw(OSError))
    check(package)
    assert kernels(package)
