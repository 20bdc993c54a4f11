"""What goes to a machine without a network: pieces there give the same folders."""

import os
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from benchmarks.offline import pack

FOLDER = Path(pack.__file__).parent
ROOT = FOLDER.parent.parent


@pytest.fixture
def packed(monkeypatch, tmp_path):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["pack", str(tmp_path / "out"), *map(str, words)])
        pack.main()
        return sorted((tmp_path / "out").glob("*.[0-9][0-9]"))

    return run


def target(*words, parts):
    environment = os.environ | {"PARTS": str(parts)}
    command = ["bash", FOLDER / "target.sh", *map(str, words)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)


def test_files_and_folders_arrive_whole(packed, tmp_path):
    model, tree = tmp_path / "model.gguf", tmp_path / "rows"
    model.write_bytes(os.urandom(2500))
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_bytes(os.urandom(5000))
    found = packed("--piece", 1000, "--file", model, "--tree", tree)
    assert [each.stat().st_size for each in found][:3] == [1000, 1000, 500]
    assert all(each.stat().st_size <= 1000 for each in found)
    parts = tmp_path / "parts"
    for _ in range(2):  # sent twice: the first piece begins anew
        for each in found:
            assert target("add", each, parts=parts).returncode == 0
    assert (parts / "model.gguf").read_bytes() == model.read_bytes()
    assert target("unpack", "rows", tmp_path / "there", parts=parts).returncode == 0
    sent, arrived = (each / "deep" / "file" for each in (tree, tmp_path / "there"))
    assert arrived.read_bytes() == sent.read_bytes()


def test_what_is_complete_is_unpacked_while_the_rest_arrives(packed, tmp_path):
    model, tree = tmp_path / "model.gguf", tmp_path / "rows"
    model.write_bytes(os.urandom(2500))
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(5000))
    found = packed("--piece", 1000, "--file", model, "--tree", tree)
    parts, there = tmp_path / "parts", tmp_path / "there"
    command = ["bash", FOLDER / "target.sh", "follow", tmp_path / "out" / "manifest", there]
    with subprocess.Popen(command, env=os.environ | {"PARTS": str(parts)}) as following:
        for each in found:
            assert following.poll() is None
            assert target("add", each, parts=parts).returncode == 0
        assert following.wait(30) == 0
    assert (there / "rows" / "file").read_bytes() == (tree / "file").read_bytes()
    assert {each.name for each in there.glob("*.complete")} == {
        "model.gguf.complete",
        "rows.tar.xz.complete",
    }


def test_a_list_becomes_one_folder_without_what_it_leaves_out(packed, monkeypatch, tmp_path):
    def download(requirements, wheels, python):
        assert python == "3.12"
        wheels.mkdir(parents=True, exist_ok=True)
        for name in requirements:
            with zipfile.ZipFile(wheels / f"{name}.whl", "w") as wheel:
                wheel.writestr(f"{name}/code.py", name)
                wheel.writestr(f"{name}/sm100/kernel.so", "large")

    monkeypatch.setattr(pack, "download", download)
    names = tmp_path / "engine.txt"
    names.write_text("# an engine\none\ntwo\n\n- one/sm100\n- */nothing\n")
    packed("--wheels", names)
    site = tmp_path / "out" / "engine"
    assert {each.relative_to(site).as_posix() for each in site.rglob("*.*")} == {
        "one/code.py",
        "two/code.py",
        "two/sm100/kernel.so",
    }


@pytest.mark.parametrize("name", ["graft", "sglang", "vllm"])
def test_lists_name_each_package_once_and_not_those_of_graft(name):
    def packages(name):
        lines = (FOLDER / f"{name}.txt").read_text().splitlines()
        return [line.split("=")[0].lower() for line in lines if line[0] not in "#-"]

    found = packages(name)
    assert len(found) == len(set(found)) > 10
    assert name == "graft" or not set(found) & set(packages("graft"))


def test_plug_ins_are_found_in_the_project_there(tmp_path):
    assert target("project", tmp_path / "project", parts=tmp_path).returncode == 0
    (about,) = (tmp_path / "project").glob("*.dist-info")
    points = {(each.group, each.value) for each in PathDistribution(about).entry_points}
    assert ("sglang.srt.plugins", "graft.integrations.sglang:register") in points
    assert ("vllm.general_plugins", "graft.integrations.vllm_device:register") in points


@pytest.mark.parametrize("script", ["target.sh", "engines.sh", "grown.sh"])
def test_scripts_say_how_to_use_them(script):
    found = subprocess.run(["bash", FOLDER / script], capture_output=True, text=True)
    assert found.returncode == 2
    assert script in found.stdout
