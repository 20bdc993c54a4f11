import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graft import home as graft_home
from graft.errors import CheckpointError
from graft.home import atomic_file, atomic_folder, home


def test_home_is_graft_home_or_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_HOME", str(tmp_path / "home"))
    assert home() == tmp_path / "home"
    monkeypatch.delenv("GRAFT_HOME")
    assert home().name == "graft"


def test_atomic_file_keeps_the_old_content_on_failure(tmp_path):
    file = tmp_path / "a.json"
    with atomic_file(file) as temporary:
        temporary.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_file(file) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_atomic_folder_replaces_all_files_or_none(tmp_path):
    folder = tmp_path / "model"
    for text in ("old", "new"):
        with atomic_folder(folder) as temporary:
            (temporary / "a").write_text(text)
    with pytest.raises(RuntimeError), atomic_folder(folder) as temporary:  # noqa: PT012
        (temporary / "a").write_text("half")
        raise RuntimeError
    assert (folder / "a").read_text() == "new"
    assert os.listdir(tmp_path) == ["model"]


KILLED = """
import sys, time
from pathlib import Path
from graft.home import atomic_folder
with atomic_folder(Path(sys.argv[1])) as temporary:
    (temporary / "a").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_killed_writer_leaves_the_old_folder_and_its_rest_is_cleaned(tmp_path):
    folder = tmp_path / "model"
    with atomic_folder(folder) as temporary:
        (temporary / "a").write_text("old")
    command = [sys.executable, "-c", KILLED, str(folder)]
    root = Path(graft_home.__file__).parent.parent
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root)
    assert writer.stdout.readline() == b"writing\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert (folder / "a").read_text() == "old"
    [leftover] = [f for f in tmp_path.iterdir() if f.name.startswith(graft_home.TEMPORARY)]
    graft_home.clean(tmp_path)
    assert leftover.exists()
    os.utime(leftover, (time.time() - 2 * graft_home.DAY,) * 2)
    graft_home.clean(tmp_path)
    assert os.listdir(tmp_path) == ["model"]


def test_swap_cut_in_the_middle_is_undone(tmp_path):
    aside = tmp_path / f"{graft_home.REPLACED}model"
    aside.mkdir()
    (aside / "a").write_text("old")
    graft_home.clean(tmp_path)
    assert (tmp_path / "model" / "a").read_text() == "old"


@pytest.mark.parametrize("writer", [atomic_file, atomic_folder])
@pytest.mark.parametrize(
    ("folder", "way_out"),
    [("graft-home/models", "set GRAFT_HOME to another folder"), ("mine", "name another folder")],
)
def test_full_disk_is_one_line_with_a_remedy(tmp_path, monkeypatch, writer, folder, way_out):
    monkeypatch.setenv("GRAFT_HOME", str(tmp_path / "graft-home"))
    file = tmp_path / folder / "a"
    with pytest.raises(CheckpointError) as refused, writer(file, needed=12 * 10**6):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(refused.value) == (
        f"no space left in {file.parent}: 12 MB needed; free some or {way_out}"
    )
    assert os.listdir(file.parent) == []
