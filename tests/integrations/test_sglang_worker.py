"""What SGLang calls on Graft's worker and in its front end, with stand-ins for SGLang's classes."""

import asyncio
import logging
import os
import sys
import types
from types import SimpleNamespace

import pytest
import torch

from graft.errors import InputError
from graft.integrations import sglang_frontend as frontend
from graft.integrations.request_text import MAX_CHARACTERS, MAX_TOKENS, encoder
from graft.integrations.sglang import WorkerDrafts, corpora_of, pools_of
from graft.integrations.sglang_chains import wants_only_chains
from graft.integrations.sglang_corpora import SEPARATOR, Corpora
from graft.integrations.sglang_fields import (
    NO_TEXTS,
    Reader,
    Texts,
)
from graft.integrations.sglang_trees import FILLER
from graft.match.store_build import StoreWriter, begin_store
from graft.match.store_files import Manifest

DOCUMENT = list(range(10, 60))
NODES = 8
READER = Reader(lambda text: [ord(letter) for letter in text], vocabulary=200)


@pytest.mark.parametrize(
    ("custom", "texts"),
    [
        (None, NO_TEXTS),
        ({"thinking_budget": 5}, NO_TEXTS),
        ({"documents": ["ab", [1, 2]]}, Texts([[97, 98], [1, 2]], [])),
        ({"documents": [1, 2, None, 3]}, Texts([[1, 2], [3]], [])),
        ({"documents": ["", []], "prediction": [7, 8]}, Texts([], [7, 8])),
        ({"prediction": "b", "corpora": ["law"]}, Texts([], [98], ["law"])),
        ({"corpora": []}, Texts([], [], [])),
    ],
)
def test_fields_are_texts_or_token_ids_and_pass_between_processes(custom, texts):
    assert READER.read(custom) == texts
    sent = texts.fields()
    assert READER.read(sent).fields() == sent
    values = [each for value in sent.values() for each in value]
    assert all(each is None or isinstance(each, int | str) for each in values)


@pytest.mark.parametrize(
    ("custom", "message"),
    [
        ({"documents": "text"}, "documents must be a list of texts or of lists of token ids"),
        ({"documents": [[1.5]]}, "documents must be a list of texts or of lists of token ids"),
        ({"documents": [5, "a"]}, "documents must be a list of texts or of lists of token ids"),
        ({"documents": [[True]]}, "documents must be a list of texts or of lists of token ids"),
        ({"prediction": {"content": "a"}}, "prediction must be a text or a list of token ids"),
        ({"prediction": [200]}, "prediction: token ids must be from 0 to 199"),
        ({"documents": [[-1]]}, "documents: token ids must be from 0 to 199"),
        ({"corpora": "law"}, "corpora must be a list of names of external corpora"),
        ({"prediction": [1] * (MAX_TOKENS + 1)}, f"may have {MAX_TOKENS} tokens together"),
        ({"documents": ["a" * (MAX_CHARACTERS + 1)]}, "a text of 1048577 characters"),
    ],
)
def test_fields_of_another_kind_are_refused_in_one_line(custom, message):
    with pytest.raises(InputError, match=f"^custom_params.*{message}") as raised:
        READER.read(custom)
    assert "\n" not in str(raised.value)


def test_half_characters_of_json_are_replaced():
    seen = []
    encode = encoder(SimpleNamespace(encode=lambda text, **_: seen.append(text) or [5]))
    assert Reader(encode, 200).read({"documents": ["a\ud800b"]}).documents == [[5]]
    assert seen == ["a?b"]


def test_texts_need_a_tokenizer_and_token_ids_do_not():
    reader = Reader(None, 200)
    assert reader.read({"documents": [[5]]}).documents == [[5]]
    with pytest.raises(InputError, match="no tokenizer; send token ids"):
        reader.read({"prediction": "text"})


class NgramWorker:
    """The parts of SGLang's worker that Graft's uses: it loads a corpus when it is made."""

    def __init__(self, *, corpus=None, overlap=False, tp_size=1):
        self.server_args = SimpleNamespace(tp_size=tp_size)
        self.draft_token_num, self.topk, self.enable_overlap = NODES, 8, overlap
        self.target_worker = SimpleNamespace(tokenizer=None)
        self.model_runner = SimpleNamespace(model_config=SimpleNamespace(vocab_size=500))
        self.req_to_token_pool = SimpleNamespace(req_to_token=torch.zeros(4, 1))
        self.device = "cpu"
        self.ngram_corpus = SimpleNamespace(external_corpus_max_tokens=100)
        if corpus:
            self.commit_corpus_load("start", self.add_external_corpus("start", corpus))


class Worker(WorkerDrafts, NgramWorker):
    def __init__(self, **options):
        super().__init__(**options)
        self.start_drafts()

    def step(self, *requests, in_flight=None):
        """The deepest path of each request's tree; in flight: each request's tokens of the last
        step, None if it was not in that step, and how many of each request's text have KV."""
        batch = SimpleNamespace(reqs=requests)
        steps, kept = in_flight or ([None], [known(each) - 1 for each in requests])
        batch.seq_lens_cpu = torch.tensor(kept)
        last = [(each, new) for each, new in zip(requests, steps, strict=False) if new]
        if last:
            rows = torch.tensor([[*new, *[0] * (NODES - len(new))] for _, new in last])
            verified = SimpleNamespace(
                reqs=[each for each, _ in last], req_pool_indices=torch.arange(len(last))
            )
            counts = torch.tensor([len(new) for _, new in last])
            self.last_step.note(verified, rows, counts)
        tokens, mask = self._prepare_draft_tokens(batch)
        self._update_ngram_corpus(batch)
        rows = zip(tokens.reshape(-1, NODES), mask.reshape(-1, NODES, NODES), strict=True)
        return [row[max(ancestors, key=sum)].tolist()[1:] for row, ancestors in rows]


def known(request):
    """Tokens of a request's text that SGLang's scheduler knows."""
    return len(request.origin_input_ids) + len(request.output_ids)


def request(name, output, **custom):
    return SimpleNamespace(
        rid=name,
        origin_input_ids=[1],
        origin_input_ids_unpadded=[1],
        output_ids=output,
        sampling_params=SimpleNamespace(custom_params=custom),
    )


def added(worker, name, chunks):
    """As SGLang's ExternalCorpusManager does it."""
    loaded = worker.add_external_corpus(name, chunks)
    worker.commit_corpus_load(name, loaded)
    return loaded


def test_a_corpus_is_drafted_from_listed_and_removed():
    worker = Worker()
    assert worker.step(request("before", [10, 11])) == [[FILLER]]
    assert added(worker, "a", [DOCUMENT[:30], DOCUMENT[30:], [SEPARATOR, 100, 101, 102]]) == 53
    assert worker.list_external_corpora() == {"a": 53}
    [across_chunks] = worker.step(request("one", [38, 39]))
    assert across_chunks[:4] == [40, 41, 42, 43]
    [last, other] = worker.step(request("two", [58, 59]), request("three", [100, 101]))
    assert last == [FILLER]  # nothing continues across documents
    assert other == [102]
    worker.remove_external_corpus("a")
    assert worker.list_external_corpora() == {}
    assert worker.step(request("after", [10, 11])) == [[FILLER]]


def test_a_corpus_counts_only_once_it_is_committed():
    worker = Worker()
    worker.add_external_corpus("a", [DOCUMENT])
    assert worker.list_external_corpora() == {}
    assert worker.step(request("one", [10, 11])) == [[FILLER]]


def test_corpora_are_bounded_by_sglangs_option():
    worker = Worker()
    added(worker, "a", [DOCUMENT])
    with pytest.raises(InputError, match="has 51 tokens, and 50 of 100 are left; remove a corpus"):
        added(worker, "b", [[*DOCUMENT, 9]])
    with pytest.raises(InputError, match="there is a corpus 'a' already"):
        added(worker, "a", [[1, 2]])
    with pytest.raises(InputError, match="corpus 'c' is empty"):
        added(worker, "c", [[SEPARATOR]])
    with pytest.raises(InputError, match="token ids that the model does not have"):
        added(worker, "c", [[500]])
    with pytest.raises(InputError, match="no corpus 'd'; there are a"):
        worker.remove_external_corpus("d")
    worker.remove_external_corpus("a")
    assert added(worker, "b", [[*DOCUMENT, 9]]) == 51


def test_a_tensor_parallel_server_has_the_corpus_of_its_start_alone():
    worker = Worker(corpus=[DOCUMENT], tp_size=2)
    assert worker.list_external_corpora() == {"start": 50}
    with pytest.raises(InputError, match="tensor-parallel server"):
        worker.add_external_corpus("a", [[1, 2, 3]])


def test_a_request_may_name_corpora_and_a_wrong_name_is_logged(caplog):
    worker = Worker(corpus=[DOCUMENT])
    documents = [[100, 101, 102]]
    with caplog.at_level(logging.WARNING):
        [copied] = worker.step(request("one", [100, 101], documents=documents, corpora=["stat"]))
    assert copied == [102]
    assert caplog.messages == ["request one: no corpus 'stat'; there are start"]
    [named, none] = worker.step(
        request("two", [10, 11], corpora=["start"]), request("three", [10, 11], corpora=[])
    )
    assert named[:2] == [12, 13]
    assert none == [FILLER]


def test_fields_that_cannot_be_used_are_logged_once(caplog):
    worker, asks = Worker(), request("one", [10], documents=["text"])
    with caplog.at_level(logging.WARNING):
        worker.step(asks)
        worker.step(asks)
    assert len(caplog.messages) == 1
    assert "no tokenizer; send token ids" in caplog.messages[0]


def test_texts_are_forgotten_when_the_request_ends():
    worker = Worker()
    [copied] = worker.step(request("one", [100, 101], documents=[[100, 101, 102]]))
    assert copied == [102]
    worker.note_request_finished(rid="one", natural_stop=True)
    assert "one" not in worker.trees
    worker.step(request("two", [5], prediction=[7]))
    worker.step(request("three", [5]))
    assert "two" not in worker.trees  # it left the batch without a word: aborted, or retracted


def test_tokens_in_flight_are_part_of_the_text():
    worker, asks = Worker(overlap=True), request("one", [10], documents=[DOCUMENT])
    [copied] = worker.step(asks, in_flight=([[20, 21]], [3]))
    assert copied[:3] == [22, 23, 24]


def test_tokens_are_not_in_flight_any_more_after_a_step_of_other_requests():
    worker, asks = Worker(overlap=True), request("one", [10], documents=[DOCUMENT])
    worker.step(asks, in_flight=([[20, 21]], [3]))
    asks.output_ids = [10, 20, 21]  # processed while the prompt of "two" is computed
    new = request("two", [], documents=[DOCUMENT])
    copied = worker.step(asks, new, in_flight=([None, [40]], [3, 1]))
    assert [path[:2] for path in copied] == [[22, 23], [41, 42]]
    new.output_ids = [40]
    copied = worker.step(asks, new, in_flight=([[22, 23], [41]], [5, 2]))
    assert [path[:2] for path in copied] == [[24, 25], [42, 43]]


def test_a_flush_forgets_requests_and_the_pool_in_memory_but_no_corpora(monkeypatch):
    monkeypatch.setenv("GRAFT_POOL", "memory")
    worker = Worker(corpus=[[100, 101, 102]])
    worker.step(request("one", [5, *DOCUMENT]))
    worker.note_request_finished(rid="one", natural_stop=True)
    assert worker.step(request("two", [20, 21]))[0][:2] == [22, 23]
    worker.reset_drafts()
    assert "two" not in worker.trees
    assert worker.step(request("two", [20, 21]), request("c", [100, 101])) == [[FILLER], [102]]


def test_weight_updates_succeed_without_a_draft_model():
    worker = Worker()
    assert worker.update_weights_from_disk(None)[0]
    assert worker.update_weights_from_ipc(None)[0]


def test_pools_and_datastores_are_named_in_the_environment(monkeypatch, tmp_path):
    alone, split = SimpleNamespace(tp_size=1), SimpleNamespace(tp_size=2)
    assert pools_of(alone) is None
    monkeypatch.setenv("GRAFT_POOL", "memory")
    assert pools_of(split).capacity == 0
    monkeypatch.setenv("GRAFT_POOL", str(tmp_path / "pool"))
    with pytest.raises(InputError, match="GRAFT_POOL=memory"):
        pools_of(split)
    monkeypatch.setattr("graft.integrations.sglang._fingerprint", lambda _: "ours")
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, first in zip(folders, (10, 100), strict=True):
        folder.mkdir()
        writer = StoreWriter(folder, begin_store(folder, Manifest("ours", "", 400)))
        writer.add_tokens([torch.arange(first, first + 20).numpy()])
        writer.finish()
    monkeypatch.setenv("GRAFT_STORES", os.pathsep.join(map(str, folders)))
    worker = Worker(corpus=[[300, 301, 302]])
    found = worker.step(
        request("a", [10, 11]), request("b", [100, 101]), request("c", [300, 301], corpora=[])
    )
    assert [each[0] for each in found] == [12, 102, FILLER]  # datastores are for all requests
    monkeypatch.setattr("graft.integrations.sglang._fingerprint", lambda _: "another")
    with pytest.raises(InputError, match="tokenizer"):
        corpora_of(alone, 500)


class Manager:
    """SGLang's TokenizerManager as the hooks see it; its workers are one."""

    def __init__(self, worker, algorithm="GRAFT"):
        self.server_args = SimpleNamespace(speculative_algorithm=algorithm)
        self.model_config = SimpleNamespace(vocab_size=500)
        self.tokenizer = SimpleNamespace(encode=lambda text, **_: [ord(each) for each in text])
        self.worker, self.loops = worker, 0

    def auto_create_handle_loop(self):
        self.loops += 1

    async def add_external_corpus_communicator(self, asked):
        try:
            count = added(self.worker, asked.corpus_id, asked.token_chunks)
        except InputError as error:
            return [SimpleNamespace(success=False, message=str(error))] * 2
        return [SimpleNamespace(success=True, message="Loaded.", loaded_token_count=count)] * 2

    async def remove_external_corpus_communicator(self, asked):
        self.worker.remove_external_corpus(asked.corpus_id)
        return [SimpleNamespace(success=True, message="Removed.")]

    async def list_external_corpora_communicator(self, _):
        counts = self.worker.list_external_corpora()
        return [SimpleNamespace(success=True, message="", corpus_token_counts=counts)]


@pytest.fixture
def messages(monkeypatch):
    """Stands in for sglang.srt.managers.io_struct."""
    module = types.ModuleType("sglang.srt.managers.io_struct")
    module.__getattr__ = lambda name: SimpleNamespace
    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def corpus(**fields):
    empty = dict.fromkeys(("corpus_id", "file_path", "documents", "token_chunks"))
    return SimpleNamespace(**empty | fields)


async def refuse(*_):
    return "Ngram speculative decoding is not enabled."


@pytest.mark.usefixtures("messages")
def test_the_front_end_passes_corpora_on_to_grafts_worker():
    worker = Worker()
    manager = Manager(worker)
    asked = corpus(documents=["abcdef", "xyz"], corpus_id="letters")
    done = asyncio.run(frontend.add_external_corpus(refuse, manager, asked))
    assert (done.success, done.corpus_id, done.message) == (True, "letters", "Loaded.")
    assert done.loaded_token_count == 9
    assert manager.loops == 1
    assert worker.step(request("one", [97, 98]))[0][:2] == [99, 100]
    listed = asyncio.run(frontend.list_external_corpora(refuse, manager))
    assert listed.corpus_token_counts == {"letters": 9}
    asked = corpus(documents=["abc"], corpus_id="letters")
    again = asyncio.run(frontend.add_external_corpus(refuse, manager, asked))
    assert not again.success
    assert again.message == "there is a corpus 'letters' already; remove it first"
    gone = asyncio.run(frontend.remove_external_corpus(refuse, manager, "letters"))
    assert gone.success
    unnamed = asyncio.run(frontend.add_external_corpus(refuse, manager, corpus(documents=["ab"])))
    assert worker.list_external_corpora() == {unnamed.corpus_id: 2}


@pytest.mark.usefixtures("messages")
@pytest.mark.parametrize("fields", [{}, {"documents": "text"}, {"documents": [5]}])
def test_a_corpus_without_texts_is_refused(fields):
    done = asyncio.run(frontend.add_external_corpus(refuse, Manager(None), corpus(**fields)))
    assert not done.success
    assert done.message == "an external corpus needs file_path, or documents as a list of texts"


def test_other_algorithms_keep_sglangs_own_answers():
    manager, asked = Manager(None, "NGRAM"), sampled({"documents": "wrong"})
    frontend.read_fields(manager, asked, [1])
    assert asked.sampling_params["custom_params"] == {"documents": "wrong"}
    for answer in (
        frontend.add_external_corpus(refuse, manager, corpus()),
        frontend.remove_external_corpus(refuse, manager, "a"),
        frontend.list_external_corpora(refuse, manager),
    ):
        assert asyncio.run(answer) == "Ngram speculative decoding is not enabled."


def sampled(custom):
    return SimpleNamespace(sampling_params={"temperature": 0, "custom_params": custom})


def test_the_front_end_turns_texts_into_token_ids():
    custom = {"documents": ["ab", [5]], "prediction": "c", "thinking_budget": 3}
    asked, shared = sampled(custom), dict(custom)
    frontend.read_fields(Manager(None), asked, [1])
    assert custom == shared  # the requests of a batch share it
    assert asked.sampling_params == {
        "temperature": 0,
        "custom_params": {"documents": [97, 98, None, 5], "prediction": [99], "thinking_budget": 3},
    }
    with pytest.raises(ValueError, match="prediction must be a text or a list of token ids"):
        frontend.read_fields(Manager(None), sampled({"prediction": 5}), [1])
    embedding = SimpleNamespace(sampling_params=None)
    frontend.read_fields(Manager(None), embedding, [1])
    assert embedding.sampling_params is None


def test_a_store_of_no_corpora_finds_nothing():
    index = Corpora(500).store(None).index()
    index.extend([1, 2, 3])
    assert len(index.lookup(4, torch.ones(2).numpy())) == 0


class FlashAttentionBackend:
    """SGLang's, whose attention to chains reads no mask and no lengths on the host."""

    needs_cpu_seq_lens = False


class ShardedBackend(FlashAttentionBackend):
    """The same name does not suffice."""

    needs_cpu_seq_lens = True


ShardedBackend.__name__ = FlashAttentionBackend.__name__


def test_chains_are_found_on_the_device_if_they_are_all_that_is_wanted(monkeypatch):
    def only_chains(
        *, topk=1, attention=FlashAttentionBackend, corpus=None, pool="off", mrope=False
    ):
        monkeypatch.setenv("GRAFT_POOL", pool)
        worker = Worker(corpus=corpus)
        worker.model_runner.model_config.model_is_mrope = mrope
        worker.topk, worker.model_runner.attn_backend = topk, attention()
        return wants_only_chains(worker)

    assert only_chains()
    assert not only_chains(topk=8)
    assert not only_chains(attention=object)
    assert not only_chains(attention=ShardedBackend)
    assert not only_chains(mrope=True)
    assert not only_chains(corpus=[DOCUMENT])
    assert not only_chains(pool="memory")


def test_corpora_are_refused_where_drafts_are_found_on_the_device():
    worker = Worker()
    worker.chains = object()
    with pytest.raises(InputError, match="start it without --speculative-ngram-max-bfs-breadth 1"):
        added(worker, "a", [DOCUMENT])
