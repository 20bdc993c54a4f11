import errno
from types import SimpleNamespace

import pytest
import tiny_gguf

from graft.errors import CheckpointError
from graft.models.checkpoints import fetch
from graft.models.checkpoints.fetch import fetch_snapshot
from graft.models.checkpoints.gguf import convert


def hub_answers(monkeypatch, *, files=None, error=None, folder=None) -> None:
    """The hub's client, answering with these files or this error."""
    import huggingface_hub

    def model_info(self, repository, timeout):
        if error:
            raise error
        siblings = [SimpleNamespace(rfilename=name) for name in files]
        return SimpleNamespace(siblings=siblings)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    monkeypatch.setattr(fetch, "cached_snapshot", lambda repository: None)


def refused() -> str:
    with pytest.raises(CheckpointError) as caught:
        fetch_snapshot("org/model", progress=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_hub_snapshot_is_checked(tmp_path, monkeypatch):
    tiny = tiny_gguf.write(tmp_path / "tiny.gguf")
    folder = convert(tiny, progress=False)
    hub_answers(monkeypatch, files=["config.json", "model.safetensors"], folder=folder)
    assert fetch_snapshot("org/model", progress=False) == folder
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in refused()


def test_hub_refusals_are_one_line(monkeypatch):
    hub_answers(monkeypatch, files=["config.json", "pytorch_model.bin", "onnx/a.safetensors"])
    assert "org/model has no safetensors" in refused()
    hub_answers(monkeypatch, error=ConnectionError("no route\nto host"))
    assert "org/model cannot be downloaded (no route)" in refused()
    hub_answers(monkeypatch, error=OSError(errno.ENOSPC, "full"))
    assert "no space left for org/model" in refused()


@pytest.mark.parametrize(
    ("kind", "says"),
    [("GatedRepoError", "is gated"), ("RepositoryNotFoundError", "the hub has no model org/model")],
)
def test_hub_says_no(monkeypatch, kind, says):
    from huggingface_hub import errors

    error_class = getattr(errors, kind)
    hub_answers(monkeypatch, error=error_class.__new__(error_class))
    assert says in refused()
