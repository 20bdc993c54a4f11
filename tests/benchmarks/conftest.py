"""A tiny model in a folder, a few questions, and engines that answer without a model."""

import json

import pytest
from fake_engines import FakeGraft, fake_workers  # noqa: F401
from made_up_rows import Recorder
from tiny import save_tiny

from benchmarks.decode.run import Backends, run
from benchmarks.decode.settings import DecodeSettings
from graft.bench.result_file import open_results

CATEGORIES = ("writing", "rag", "qa")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def questions(tmp_path):
    """Three categories, four questions each, numbered in order."""
    folder = tmp_path / "spec_bench"
    folder.mkdir()
    rows = [
        {"question_id": i, "category": CATEGORIES[(i - 1) // 4], "turns": [f"the end of the {i}"]}
        for i in range(1, 13)
    ]
    (folder / "question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def settings(tiny_folder, questions, tmp_path):
    def make(**changes):
        given = {"model": str(tiny_folder), "data": questions, "dtype": "fp32", "threads": 1}
        given |= {"max_tokens": 8, "out": tmp_path / "results.jsonl"}
        return DecodeSettings(**{**given, **changes})

    return make


@pytest.fixture
def fake_graft(monkeypatch):
    """Graft answers without a model; the requests it got, with the name of the variant's engine."""
    requests = []

    def start(self, variant):
        if self.dtype == "auto":
            self.dtype = "bf16"
        return FakeGraft(requests)

    monkeypatch.setattr(Backends, "_graft", start)
    return requests


@pytest.fixture
def measure():
    """Runs the settings; returns whether it was complete, the results and the progress."""

    def measured(settings, interrupt_after=None):
        progress = Recorder(interrupt_after)
        with open_results(settings.out) as file:
            complete = run(settings, file, progress)
        return complete, file.results, progress

    return measured
