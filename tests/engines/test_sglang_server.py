"""A whole SGLang, on a CPU in fp32 and with overlap scheduling: `make test-sglang`.

SGLang's scheduler, worker, sampling and KV pool are its own; `sglang_cpu` has stand-ins for its
compiled kernels and its attention to trees. Each engine is a process of its own.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from shipped import DOCUMENT, model_folder, question_tokens

pytestmark = pytest.mark.engine
pytest.importorskip("sglang")

HERE = Path(__file__).parent
GRAFT = {
    "speculative_algorithm": "GRAFT",
    "speculative_num_draft_tokens": 16,
    "speculative_ngram_capacity": 1000,
}
QUESTIONS = [
    "Quote the sentence about ending the agreement.",
    "What is the colour of the sky?",
    "List the equipment that the Contractor maintains.",
    "Write a poem about the sea.",
    "Who are the parties? Quote their names and addresses.",
]


@pytest.fixture(scope="module")
def model():
    return model_folder()


@pytest.fixture(scope="module")
def tokenizer(model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="module")
def requests(tokenizer):
    """Some begin while others run; one has log probabilities, one leaves, one has a prediction."""

    def asked(question, text="", **more):
        prompt = question_tokens(tokenizer, text, question)
        return {"prompt": prompt, "sampling": {"temperature": 0, "max_new_tokens": 60}} | more

    excerpt = DOCUMENT[:1500]
    found = [
        asked(question, excerpt if i % 2 == 0 else "", start=0.7 * i)
        for i, question in enumerate(QUESTIONS)
    ]
    found[2]["logprobs"] = True
    found.append(asked(QUESTIONS[3], stop_after=12, start=1.0))
    story = tokenizer.encode("Once upon a time there was a fox who lived in a den by the river.")
    found.append(asked("Tell a story about a fox.", start=0.2))
    found[-1]["sampling"] |= {"custom_params": {"prediction": story}}
    return found


@pytest.fixture(scope="module")
def answers(model, tmp_path_factory):
    """What requests came to, and how often each number of draft tokens was launched."""

    def run(requests, pool="off", **options):
        folder = tmp_path_factory.mktemp("sglang")
        job, steps = folder / "job.json", folder / "steps"
        steps.touch()
        limits = {"model_path": str(model), "context_length": 2048, "max_running_requests": 8}
        sizes = {"max_total_tokens": 16384} | options
        job.write_text(json.dumps({"options": limits | sizes, "requests": requests}))
        environment = os.environ | {
            "PYTHONPATH": str(HERE / "sglang_cpu"),
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_NATIVE_MOVE_KV_CACHE": "1",
            "GRAFT_STEPS": str(steps),
            "GRAFT_POOL": pool,
            "TRITON_INTERPRET": "1",
        }
        done = subprocess.run(
            [sys.executable, HERE / "sglang_requests.py", job],
            env=environment, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
        assert lines, done.stdout[-2000:] + done.stderr[-4000:]
        launched = Counter(map(json.loads, steps.read_text().split()))
        return json.loads(lines[0].removeprefix("ANSWERS ")), launched

    return run


@pytest.fixture(scope="module")
def plain(answers, requests):
    return answers(requests)[0]


def same(found, expected, stopped=()):
    """Whether all texts are; of requests that left, what both have."""
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        mine, theirs = one["tokens"], other["tokens"]
        if i in stopped:
            length = min(len(mine), len(theirs))
            mine, theirs = mine[:length], theirs[:length]
        assert mine == theirs, i
        assert len(mine) > 5


def test_answers_equal_those_of_sglang_without_drafts(answers, requests, plain):
    found, launched = answers(requests, **GRAFT)
    same(found, plain, stopped=[5])
    assert len(found[5]["tokens"]) < 60
    assert found[2]["logprobs"] == pytest.approx(plain[2]["logprobs"], abs=1e-3)
    assert launched[0] > 3  # plain steps; how many depends on times
    assert sum(launched[width] for width in (3, 7, 15)) > 5
    assert sum(each["accepted"] for each in found) > 20
    assert found[2]["steps"] < len(found[2]["tokens"]) / 2


@pytest.mark.parametrize("pool", ["off", "memory"], ids=["on the device", "on the host"])
def test_answers_are_equal_with_chains_whose_attention_is_causal(answers, requests, plain, pool):
    found, launched = answers(requests, pool, **GRAFT, speculative_ngram_max_bfs_breadth=1)
    same(found, plain, stopped=[5])
    drafted = sum(launched[width] for width in (3, 7, 15))
    assert drafted > 5
    assert launched["chains"] == (drafted if pool == "off" else 0)
    assert sum(each["accepted"] for each in found) > 20


@pytest.mark.parametrize("breadth", [10, 1], ids=["trees", "chains on the device"])
def test_answers_are_equal_when_requests_lose_their_place(answers, requests, plain, breadth):
    """The KV cache is too small for all of them: some are computed anew."""
    tokens = 2 * (max(len(each["prompt"]) for each in requests) + 60)
    options = {"max_total_tokens": tokens, "speculative_ngram_max_bfs_breadth": breadth}
    found, launched = answers(requests, **GRAFT, **options)
    same(found, plain, stopped=[5])
    assert launched[None] > 0
