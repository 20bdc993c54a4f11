"""The proposer in a real vLLM (CPU build, fp32): `make test-vllm`.

One engine after the other, each in a process of its own: vLLM keeps state in its process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shipped import DOCUMENT, model_folder, question_tokens

pytestmark = pytest.mark.engine
pytest.importorskip("vllm")

HERE = Path(__file__).parent
LENGTH = 16
OURS = {"method": "custom_class", "model": "graft.integrations.vllm.Proposer"}
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
QUESTIONS = [
    "List the equipment that the Contractor maintains.",
    "Quote the sentence about ending the agreement.",
    "Who are the parties? Quote their names and addresses.",
    "What is the colour of the sky?",
]


@pytest.fixture(scope="module")
def model():
    return model_folder()


@pytest.fixture(scope="module")
def prompts(model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return [question_tokens(tokenizer, DOCUMENT[:4000], question) for question in QUESTIONS]


@pytest.fixture(scope="module")
def answered(model, prompts):
    """What each way of drafting came to on the same prompts, four requests at a time."""

    def run(speculation, fields=None, **options):
        asked = json.dumps([str(model), speculation, options, prompts, 48, fields])
        done = subprocess.run(
            [sys.executable, HERE / "vllm_once.py"],
            input=asked,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def plain(answered):
    return answered(None)


@pytest.fixture(scope="module")
def ours(answered):
    return answered({**OURS, "num_speculative_tokens": LENGTH})


def build_store(folder, model, answers):
    from transformers import AutoTokenizer

    from graft.match.store_build import StoreWriter, begin_store
    from graft.match.store_files import Manifest, writing
    from graft.models.checkpoints.tokenizer import (
        batch_encoder,
        tokenizer_fingerprint,
        vocabulary_size,
    )

    tokenizer = AutoTokenizer.from_pretrained(model)
    manifest = Manifest(tokenizer_fingerprint(tokenizer), "smollm2", vocabulary_size(tokenizer))
    with writing(folder):
        writer = StoreWriter(folder, begin_store(folder, manifest))
        texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in answers]
        writer.add(texts, batch_encoder(tokenizer), lambda progress: None)
        writer.finish()


def test_answers_equal_plain_vllm(plain, ours):
    assert ours["tokens"] == plain["tokens"]


def test_draft_tokens_are_accepted_and_rejected(plain, ours):
    assert plain["drafted"] == 0
    assert 0 < ours["accepted"] < ours["drafted"]


def test_more_tokens_are_accepted_than_of_vllms_own_ngrams(answered, ours):
    ngram = answered({**NGRAM, "num_speculative_tokens": LENGTH})
    assert ours["accepted"] > ngram["accepted"]
    assert ours["drafted"] < ngram["drafted"]


def test_drafts_come_from_a_configured_datastore(answered, plain, ours, model, tmp_path_factory):
    """A store of the very answers: nearly everything is guessed."""
    folder = tmp_path_factory.mktemp("stores") / "answers"
    build_store(folder, model, plain["tokens"])
    stored = answered(
        {**OURS, "num_speculative_tokens": LENGTH},
        additional_config={"graft": {"stores": [str(folder)]}},
    )
    assert stored["tokens"] == plain["tokens"]
    assert stored["accepted"] > ours["accepted"]


def test_drafts_come_from_documents_and_predictions_of_requests(answered, plain, ours, model):
    """The very answers, as token ids, as text, and for two requests none that can be read."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    _, second, third, _ = plain["tokens"]
    fields = [
        {"documents": "not a list"},
        {"documents": [second], "tenant": "a"},
        json.dumps({"prediction": tokenizer.decode(third)}),
        {"documents": [[10**9]]},
    ]
    helped = answered({**OURS, "num_speculative_tokens": LENGTH}, fields)
    assert helped["tokens"] == plain["tokens"]
    assert helped["accepted"] > ours["accepted"]
    assert helped["sources"]["document"] > 0 < helped["sources"]["prediction"]
    assert ours["sources"]["document"] == 0 < ours["sources"]["prompt"]
    assert sum(helped["sources"].values()) == helped["accepted"]


def test_an_unknown_option_stops_vllm_with_one_line(answered):
    with pytest.raises(AssertionError, match="unknown graft option 'store'"):
        answered(
            {**OURS, "num_speculative_tokens": LENGTH}, additional_config={"graft": {"store": "x"}}
        )
