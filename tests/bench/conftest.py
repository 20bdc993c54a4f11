"""A tiny model in a folder, a few questions, and workers that answer without a model."""

import json
import shutil
from pathlib import Path

import pytest
from tiny import tiny_network, tiny_tokenizer

from graft.bench import workers
from graft.bench.settings import Settings

FAKE_WORKER = Path(__file__).parent / "fake_worker.py"
SUBJECTS = ("writing", "rag", "qa")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny-model")
    tiny_network().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def questions(tmp_path):
    """Three categories, four questions each, numbered as they come."""
    folder = tmp_path / "spec_bench"
    folder.mkdir()
    rows = [
        {"question_id": i, "category": SUBJECTS[(i - 1) // 4], "turns": [f"the end of the {i}"]}
        for i in range(1, 13)
    ]
    (folder / "question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def fake_workers(tmp_path, monkeypatch):
    """Every engine is played by fake_worker.py; what each was asked stands in asked.jsonl."""
    folder = tmp_path / "peers"
    folder.mkdir()
    for engine in ("graft", "hf", "vllm", "llama"):
        shutil.copy(FAKE_WORKER, folder / f"{engine}_peer.py")
    monkeypatch.setattr(workers, "PEERS", folder)
    monkeypatch.setenv("FAKE_WORKER_ASKED", str(tmp_path / "asked.jsonl"))

    def asked():
        return [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()]

    return asked


@pytest.fixture
def settings(tiny_folder, questions):
    def make(**changes):
        given = {"model": str(tiny_folder), "data": questions, "dtype": "fp32", "threads": 1}
        return Settings(**{**given, "max_tokens": 8, **changes})

    return make
