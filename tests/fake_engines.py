"""Engines that answer without a model: worker processes, and Graft's own."""

import json
import shutil
from pathlib import Path

import pytest

from graft.bench import worker

FAKE_WORKER = Path(__file__).parent / "fake_worker.py"


@pytest.fixture
def fake_workers(tmp_path, monkeypatch):
    """Every other engine is played by fake_worker.py; returns the requests that it got."""
    folder = tmp_path / "engines"
    folder.mkdir()
    for engine in ("transformers", "vllm", "llama_cpp"):
        shutil.copy(FAKE_WORKER, folder / f"{engine}_worker.py")
    monkeypatch.setattr(worker, "SCRIPTS", folder)
    monkeypatch.setenv("FAKE_WORKER_REQUESTS", str(tmp_path / "requests.jsonl"))

    def requests():
        lines = (tmp_path / "requests.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    return requests


class FakeGraft:
    """Answers like fake_worker.py and keeps the requests."""

    def __init__(self, requests):
        self.requests, self.warm = requests, set()
        self.about = {"versions": {"graft": "0.1.0"}, "settings": {"dtype": "fp32"}}

    def ask(self, request):
        self.requests.append(request)
        if "gold" in request:
            return {"log_likelihoods": [-2.0 * len(gold) for gold in request["gold"]]}
        tokens = [prompt[:4] + [request["seeds"][0]] for prompt in request["prompts"]]
        times = {"prefill_seconds": 0.5, "total_seconds": 1.5, "first_tokens": len(tokens)}
        reasons = ["length"] * len(tokens)
        return {"token_ids": tokens, "finish_reasons": reasons, "steps": 2 * len(tokens), **times}
