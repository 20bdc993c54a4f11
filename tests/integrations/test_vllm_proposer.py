"""The proposer on a batch shaped like vLLM's: rows of tokens, lengths, what was just sampled."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest

from graft.errors import InputError
from graft.integrations.vllm import REMEMBERED, Proposer, RefuseDocuments

WIDTH = 256


def config(tokens=8, max_model_len=WIDTH, **additional):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=tokens),
        model_config=SimpleNamespace(max_model_len=max_model_len, tokenizer="none"),
        additional_config=additional,
    )


class Clock:
    """A step takes a second and a little for every row."""

    now = 0.0

    def __call__(self):
        return self.now


class Batch:
    """vLLM's side: rows that grow by what was sampled."""

    def __init__(self, *texts):
        self.texts = [list(text) for text in texts]

    def ask(self, proposer, *sampled):
        for text, new in zip(self.texts, sampled, strict=True):
            text += new
        ids = np.zeros((len(self.texts) + 2, WIDTH), dtype=np.int32)
        for row, text in enumerate(self.texts):
            ids[row, : len(text)] = text
        lengths = np.array([*map(len, self.texts), 0, 0], dtype=np.int32)
        return proposer.propose([list(new) for new in sampled], lengths, ids, slot_mappings=None)


DOCUMENT = list(range(10, 60))


@pytest.fixture
def proposer():
    return Proposer(config(), Clock())


def test_a_copy_is_drafted_and_a_new_text_is_not(proposer):
    drafts = Batch([*DOCUMENT, 1, 10, 11], range(100, 150)).ask(proposer, [12], [7])
    assert drafts[0][:4] == [13, 14, 15, 16]
    assert drafts[1] == []


def test_a_prefilling_row_gets_no_draft(proposer):
    assert Batch([*DOCUMENT, 10, 11]).ask(proposer, []) == [[]]


def test_probable_copies_get_long_drafts_and_improbable_ones_short(proposer):
    batch = Batch([*DOCUMENT, 1, 10])
    first = batch.ask(proposer, [11])
    for token in range(12, 30):
        later = batch.ask(proposer, [token])
    assert len(later[0]) == 8 >= len(first[0])


def test_no_draft_exceeds_the_context():
    proposer = Proposer(config(max_model_len=56), Clock())
    drafts = Batch([*DOCUMENT, 1, 10, 11]).ask(proposer, [12])
    assert drafts == [[13]]  # 54 tokens, one drafted, one sampled behind it


def test_rows_may_move_in_the_batch(proposer):
    batch = Batch([*DOCUMENT, 1, 10], [*DOCUMENT[::-1], 1, 59])
    batch.ask(proposer, [11], [58])
    batch.texts.reverse()
    drafts = batch.ask(proposer, [57], [12])
    assert (drafts[0][:2], drafts[1][:2]) == ([56, 55], [13, 14])
    assert len(proposer._texts) == 2


def test_a_preempted_request_continues(proposer):
    batch, other = Batch([*DOCUMENT, 1, 10]), Batch(range(100, 150))
    batch.ask(proposer, [11])
    for _ in range(5):
        other.ask(proposer, [7])
    assert batch.ask(proposer, [12])[0][:2] == [13, 14]
    assert len(proposer._texts) == 2


def test_finished_requests_are_dropped(proposer):
    Batch([*DOCUMENT, 1, 10]).ask(proposer, [11])
    other = Batch(range(100, 150))
    for _ in range(REMEMBERED + 1):
        other.ask(proposer, [7])
    assert len(proposer._texts) == 1


def test_equal_requests_each_get_a_draft(proposer):
    batch = Batch([*DOCUMENT, 1, 10], [*DOCUMENT, 1, 10])
    batch.ask(proposer, [11], [11])
    drafts = batch.ask(proposer, [12], [30])
    assert (drafts[0][:2], drafts[1][:1]) == ([13, 14], [31])


def test_expensive_rows_shorten_drafts():
    def drafted(row_seconds):
        clock = Clock()
        proposer, rows = Proposer(config(), clock), 1
        batch, total = Batch([*DOCUMENT, 1, *DOCUMENT[::2], 10]), 0
        for token in [11, 12, 40, 41, 20, 21, 30, 31, 50, 51, 15, 16, 45, 46] * 3:
            clock.now += 1.0 + row_seconds * rows
            [draft] = batch.ask(proposer, [token])
            rows, total = 1 + len(draft), total + len(draft)
        return total

    assert drafted(0.0) > drafted(1.0)


def test_an_unknown_option_is_an_error():
    with pytest.raises(InputError, match="unknown graft option 'store'; options: stores"):
        Proposer(config(graft={"store": "x"}))


def test_a_folder_that_is_not_a_datastore_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name: None)
    monkeypatch.setattr(
        "graft.models.checkpoints.tokenizer.tokenizer_fingerprint", lambda tokenizer: "x"
    )
    with pytest.raises(InputError, match="is not a datastore"):
        Proposer(config(graft={"stores": str(tmp_path)}))


def answer_of(body, *, pieces=1):
    """What a client of the middleware sees: its refusal, or the body that the server read."""
    size = max(1, -(-len(body) // pieces))
    parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    waiting = [
        {"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts
    ]
    sent = []

    async def receive():
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    async def server(scope, receive, send):
        read = b""
        while True:
            message = await receive()
            read += message["body"]
            if not message["more_body"]:
                break
        sent.append(read)

    scope = {"type": "http", "method": "POST"}
    asyncio.run(RefuseDocuments(server)(scope, receive, send))
    return sent


def test_documents_in_vllm_xargs_are_an_error():
    start, body = answer_of(json.dumps({"vllm_xargs": {"documents": ["a"]}}).encode(), pieces=3)
    assert start["status"] == 400
    assert "vllm_xargs.documents" in json.loads(body["body"])["error"]["message"]


@pytest.mark.parametrize(
    "body", [b'{"vllm_xargs": {"other": 1}}', b'{"documents": [{"text": "a"}]}', b"vllm_xargs", b""]
)
def test_other_requests_reach_the_server_unchanged(body):
    assert answer_of(body, pieces=2) == [body]


def test_a_pool_drafts_from_answers_without_a_row():
    proposer = Proposer(config(graft={"pool": "memory"}), Clock())
    answered = Batch([1, 2, 3])
    for token in DOCUMENT:
        answered.ask(proposer, [token])
    later = Batch([5, 6, 7, 11, 12])
    assert later.ask(proposer, [13]) == [[]]  # its row left in this step
    assert later.ask(proposer, [14])[0][:3] == [15, 16, 17]
    off = Proposer(config(), Clock())
    assert off._pools is None


def test_a_text_that_comes_back_adds_only_what_is_new():
    proposer = Proposer(config(graft={"pool": "memory"}), Clock())
    answered, other = Batch([1, 2, 3]), Batch([9, 9])
    for token in range(30, 40):
        answered.ask(proposer, [token])
    other.ask(proposer, [8])
    answered.ask(proposer, [40])
    answered.ask(proposer, [41])
    other.ask(proposer, [8])
    texts = [text.tolist() for text in proposer._pools.of("").texts()]
    assert [text[-3:] for text in texts] == [[37, 38, 39], [9, 9, 8], [39, 40, 41]]
