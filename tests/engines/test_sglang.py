"""SGLang's own plug-in loader, tree builder and verifier around Graft's trees: `make test-sglang`.

SGLang's compiled kernels (sgl_kernel) need CUDA. Its Triton kernels for building and verifying
trees are the same algorithms and run in Triton's interpreter; sgl_kernel itself is replaced by
empty names so that SGLang's modules can be imported. No server is started here.
"""

import dataclasses
import inspect
import os
import sys
import types
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.engine
pytest.importorskip("sglang")

DOCUMENT = list(range(10, 60))
NODES = 8
# SGLang's compiled kernels, which need CUDA, and what its image models import
ABSENT = (
    "sgl_kernel",
    "sgl_kernel.speculative",
    "sgl_kernel.kvcacheio",
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
    "torchvision.io",
)


class Unavailable(types.ModuleType):
    """Any name can be imported; none works."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: pytest.fail(f"{self.__name__}.{name} was called")


@pytest.fixture(scope="module", autouse=True)
def no_compiled_kernels():
    import transformers  # noqa: F401  it looks for torchvision, and must not find this one

    for name in ABSENT:
        sys.modules.setdefault(name, Unavailable(name))


@pytest.fixture(scope="module")
def algorithm():
    """As SGLang finds it: through the entry point of the installed package."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    load_plugins()
    return SpeculativeAlgorithm.from_string("GRAFT")


def test_sglang_finds_the_algorithm_by_its_entry_point(algorithm):
    assert algorithm.is_ngram()
    assert not algorithm.has_draft_kv()


def test_the_algorithm_answers_all_that_sglang_asks_as_ngram_does(algorithm):
    """SGLang's class for plug-ins lacks some methods that its scheduler calls."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    methods = {
        name: member
        for name, member in vars(SpeculativeAlgorithm).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }
    assert {"create_future_map", "carries_draft_hidden_states", "create_worker"} <= set(methods)
    for name, member in methods.items():
        assert callable(getattr(algorithm, name)), name
        if len(inspect.signature(member).parameters) == 1 and name != "get_platform_worker_cls":
            answer = getattr(SpeculativeAlgorithm.NGRAM, name)()
            assert getattr(algorithm, name)() == answer, name


def parameters(function):
    """Names, kinds and defaults, without annotations."""
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


def test_the_worker_overrides_what_sglang_has_with_the_same_parameters(algorithm):
    from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
    from sglang.srt.speculative.ngram_worker import NGRAMWorker

    from graft.integrations.sglang import WorkerDrafts

    worker = algorithm.factory(None)
    assert issubclass(worker, NGRAMWorker)
    assert issubclass(worker, BaseSpecWorker)
    assert not inspect.isabstract(worker)
    ours = ("start_drafts", "reset_drafts", "start_steps", "run_step")
    private = ("_texts", "_running", "_draft_tokens", "_agreed", "_follow")
    # SGLang 0.5.23 updates weights without the worker.
    sometimes = ("update_weights_from_disk", "update_weights_from_ipc")
    for name, member in vars(WorkerDrafts).items():
        if name in ours + private or not inspect.isfunction(member):
            continue
        if name in sometimes and not hasattr(NGRAMWorker, name):
            continue
        assert parameters(member) == parameters(getattr(NGRAMWorker, name)), name


def test_what_sglang_calls_on_the_worker_is_there(algorithm):
    """The names that its scheduler and corpus manager use of an NGRAM worker."""
    worker = algorithm.factory(None)
    for name in (
        "add_external_corpus",
        "alloc_memory_pool",
        "clear_cache_pool",
        "commit_corpus_load",
        "draft_worker",
        "forward_batch_generation",
        "graph_memory_usage",
        "graph_time_usage",
        "init_attention_backends",
        "init_cuda_graphs",
        "list_external_corpora",
        "note_request_finished",
        "on_verify_complete_cpu",
        "remove_external_corpus",
        "spec_v2_attn_backends",
        "weight_load_time",
    ):
        assert hasattr(worker, name), name


def test_what_the_worker_takes_from_sglangs_is_there():
    """Attributes that NGRAMWorker sets, and those of requests and batches."""
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus
    from sglang.srt.speculative.ngram_worker import NGRAMWorker

    made = inspect.getsource(NGRAMWorker.__init__)
    for name in ("server_args", "model_runner", "ngram_corpus", "draft_token_num", "topk"):
        assert f"self.{name}" in made
    assert "self.enable_overlap" in made
    assert "self.external_corpus_max_tokens" in inspect.getsource(NgramCorpus.__init__)
    request = inspect.getsource(Req.__init__)
    assert "self.origin_input_ids" in request
    for name in ("rid", "origin_input_ids_unpadded", "output_ids", "sampling_params", "extra_key"):
        assert f"self.{name} = " in request
    batch = {each.name for each in dataclasses.fields(ScheduleBatch)}
    assert {"has_grammar", "return_hidden_states", "return_logprob", "seq_lens_cpu"} <= batch
    step = inspect.getsource(NGRAMWorker.forward_batch_generation)
    assert "self._update_ngram_corpus(batch)" in step
    assert "self._prepare_for_speculative_decoding(batch)" in step


def test_what_steps_of_other_sizes_take_from_sglang_is_there(algorithm):
    """The names that Graft replaces for the time of a step, and what makes their values."""
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.managers.overlap_utils import FutureMap
    from sglang.srt.managers.scheduler import GenerationBatchResult
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.runtime_context import get_context
    from sglang.srt.speculative import ngram_worker

    from graft.integrations.sglang_steps import RUNNER

    runner = inspect.getsource(ModelRunner)
    for name in RUNNER:
        assert f"self.{name} = " in runner, name
    assert "init_new_workspace" in inspect.signature(ModelRunner._get_attention_backend).parameters
    assert callable(ModelRunner.init_decode_cuda_graph)
    assert callable(mambaish_config)
    made = inspect.getsource(ngram_worker.NGRAMWorker._init_preallocated_tensors)
    assert "self.draft_token_num" in made
    prepared = inspect.getsource(ngram_worker.NGRAMWorker._prepare_for_speculative_decoding)
    assert "USE_FULL_MASK" in prepared
    algorithm.factory(None)
    assert not ngram_worker.USE_FULL_MASK
    for name in ("assign_extend_cache_locs_func", "record_stream_for_v2_verify"):
        assert callable(getattr(ngram_worker, name))
    assert "source" in inspect.signature(type(get_context()).override).parameters
    resolved = inspect.getsource(FutureMap.resolve_seq_lens_cpu)
    assert "if not self.needs_cpu_seq_lens:" in resolved
    results = {each.name for each in dataclasses.fields(GenerationBatchResult)}
    assert {"accept_lens", "next_draft_input", "speculative_num_draft_tokens"} <= results


def test_results_of_plain_steps_and_of_small_trees_merge_with_those_of_full_trees(
    algorithm,  # noqa: ARG001
    monkeypatch,
):
    from sglang.srt.speculative import ngram_worker
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    from graft.integrations.sglang_steps import Size, as_full_trees, plain_step

    monkeypatch.setattr(ngram_worker, "record_stream_for_v2_verify", lambda *_: None)
    monkeypatch.setattr(
        ngram_worker, "assign_extend_cache_locs_func", lambda **given: given["start_offset"]
    )
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(current_stream=int))
    seen = []

    def forward(batch):
        seen.append((batch.spec_algorithm.is_none(), batch.spec_info, batch.input_ids.tolist()))
        return SimpleNamespace(
            next_token_ids=torch.tensor([50, 60]), logits_output=None, can_run_cuda_graph=True
        )

    worker = SimpleNamespace(
        device="cpu",
        draft_token_num=NODES,
        model_runner=SimpleNamespace(),
        target_worker=SimpleNamespace(forward_batch_generation=forward),
    )
    batch = SimpleNamespace(
        reqs=[SimpleNamespace(rid="a"), SimpleNamespace(rid="b")],
        req_pool_indices=torch.tensor([2, 1]),
        req_to_token_pool=SimpleNamespace(req_to_token=None),
        seq_lens=torch.tensor([4, 7]),
        seq_lens_cpu=torch.tensor([4, 7]),
        return_logprob=False,
        **dict.fromkeys(("spec_algorithm", "spec_info", "input_ids", "out_cache_loc")),
        seq_lens_sum=11,
    )
    published, newest = [], torch.tensor([5, 6])
    result = plain_step(worker, batch, published.append, Size({}, {}), newest)
    assert seen == [(True, None, [5, 6])]
    assert published[0].tolist() == [5, 8]
    assert batch.seq_lens_cpu.tolist() == [4, 7]
    assert result.next_token_ids.tolist() == [50, 60]
    assert (result.accept_lens.tolist(), result.speculative_num_draft_tokens) == ([1, 1], 1)
    plain, small = (
        result.next_draft_input,
        NgramVerifyInput(
            draft_token_num=2,
            new_seq_lens=torch.tensor([3, 3]),
            accept_tokens=torch.tensor([1, 2, 3, 4]),
            accept_lens=torch.tensor([2, 1]),
        ),
    )
    full = NgramVerifyInput(
        draft_token_num=NODES,
        new_seq_lens=torch.tensor([9]),
        accept_tokens=torch.arange(NODES),
        accept_lens=torch.tensor([3]),
    )
    as_full_trees(small, NODES)
    as_full_trees(full, NODES)
    assert full.accept_tokens.tolist() == list(range(NODES))
    plain.filter_batch(torch.tensor([1]), [1])
    plain.merge_batch(small)
    plain.merge_batch(full)
    assert plain.accept_tokens.shape == (4 * NODES,)
    assert plain.accept_lens.tolist() == [1, 2, 1, 3]
    assert plain.num_tokens_per_req == small.num_tokens_per_req == NODES
    plain.filter_batch(torch.tensor([0, 3]), [0, 3])
    assert plain.new_seq_lens.tolist() == [8, 9]
    assert plain.accept_tokens.shape == (2 * NODES,)


def test_the_front_ends_methods_are_hooked_with_their_parameters(algorithm):  # noqa: ARG001
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.plugins.hook_registry import HookRegistry

    from graft.integrations import sglang_frontend as frontend

    for name in ("add_external_corpus", "remove_external_corpus", "list_external_corpora"):
        original = getattr(TokenizerManager, name).__wrapped__
        given = len(parameters(getattr(frontend, name))) - 1  # the first is the original
        assert given == len(parameters(original)), name
    create = TokenizerManager._create_tokenized_object.__wrapped__
    assert [each[0] for each in parameters(create)][:2] == ["self", "obj"]
    assert {each for each in HookRegistry._patched if each.startswith(frontend.MANAGER)} == {
        f"{frontend.MANAGER}.{name}"
        for name in (
            "_create_tokenized_object",
            "add_external_corpus",
            "remove_external_corpus",
            "list_external_corpora",
        )
    }


class Made(Exception):  # noqa: N818
    """Ends SGLang's front end where it has made the sampling parameters of a request."""


def made(**options):
    from sglang.srt.sampling.sampling_params import SamplingParams

    raise Made(SamplingParams(**options))


def test_texts_of_a_request_reach_the_scheduler(algorithm):  # noqa: ARG001
    """Through SGLang's encoder between processes, which takes no lists of lists."""
    import msgspec
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.sampling.sampling_params import SamplingParams

    manager = object.__new__(TokenizerManager)
    manager.__dict__.update(front_end_state(), preferred_sampling_params=None)
    manager.sampling_params_class = made
    manager.model_config = SimpleNamespace(vocab_size=200)

    def received(**custom):
        asked = GenerateReqInput(text="a", rid="r", sampling_params={"custom_params": custom})
        with pytest.raises(Made) as ended:
            manager._create_tokenized_object(asked, "a", [97])
        sent = msgspec.msgpack.encode(ended.value.args[0])
        return msgspec.msgpack.decode(sent, type=SamplingParams).custom_params

    given = {"corpora": ["law"], "thinking_budget": 3}
    assert received(documents=["ab", [7]], prediction="c", **given) == {
        "documents": [97, 98, None, 7],
        "prediction": [99],
        **given,
    }
    with pytest.raises(msgspec.ValidationError):
        received(another=[[7]])
    with pytest.raises(ValueError, match="prediction: token ids must be from 0 to 199"):
        received(prediction=[200])


def front_end_state():
    """Of SGLang's TokenizerManager, without a server."""
    return {
        "server_args": SimpleNamespace(speculative_algorithm="GRAFT"),
        "tokenizer": SimpleNamespace(encode=lambda text, **_: [ord(each) for each in text]),
        "auto_create_handle_loop": lambda: None,
    }


class Workers:
    """Two data-parallel workers behind SGLang's front end, each with its corpus manager."""

    def __init__(self, make):
        from sglang.srt.speculative.external_corpus_manager import ExternalCorpusManager

        self.workers, self.sent = [make(), make()], []
        self.managers = [
            ExternalCorpusManager(each, lambda output, _: self.sent.append(output))
            for each in self.workers
        ]

    def front_end(self):
        from sglang.srt.managers.tokenizer_manager import TokenizerManager

        manager = object.__new__(TokenizerManager)
        manager.__dict__.update(front_end_state())
        for name in ("add_external_corpus", "remove_external_corpus", "list_external_corpora"):
            setattr(manager, f"{name}_communicator", self.called(name.split("_")[0]))
        return manager

    def called(self, name):
        async def call(request):
            answers = [getattr(each, name)(request) for each in self.managers]
            if name == "add":
                while len(self.sent) < len(self.managers):
                    for each in self.managers:
                        each.check_pending_load()
                answers, self.sent = self.sent, []
            return answers

        return call


def test_sglangs_corpus_routes_reach_grafts_trees(worker_factory):
    import asyncio

    from sglang.srt.managers.io_struct import AddExternalCorpusReqInput

    workers = Workers(worker_factory)
    manager = workers.front_end()

    def add(**fields):
        return asyncio.run(manager.add_external_corpus(AddExternalCorpusReqInput(**fields)))

    done = add(corpus_id="letters", documents=["abcdefgh", "xyz"])
    assert (done.success, done.loaded_token_count) == (True, 11)
    assert done.message == "Loaded corpus 'letters' with 11 tokens."
    for each in workers.workers:
        tokens, _ = each._prepare_draft_tokens(batch_of([request("a", [97, 98])]))
        assert {99, 100, 101, 102, 103} <= set(tokens.tolist())
    listed = asyncio.run(manager.list_external_corpora())
    assert listed.corpus_token_counts == {"letters": 11}
    refused = add(corpus_id="letters", documents=["abc"])
    assert not refused.success
    assert refused.message == "there is a corpus 'letters' already; remove it first"
    assert not add(documents=["x" * 101]).success
    assert asyncio.run(manager.remove_external_corpus("letters")).success
    gone = asyncio.run(manager.remove_external_corpus("letters"))
    assert (gone.success, gone.message) == (False, "no corpus 'letters'; there is none")


def request(name, output, **custom):
    return SimpleNamespace(
        rid=name,
        origin_input_ids=[*DOCUMENT, 1],
        origin_input_ids_unpadded=[*DOCUMENT, 1],
        output_ids=output,
        sampling_params=SimpleNamespace(custom_params=custom),
    )


def batch_of(requests):
    """All of their tokens but the last have KV, and the scheduler knows them all."""
    known = [len(each.origin_input_ids) + len(each.output_ids) for each in requests]
    return SimpleNamespace(reqs=requests, seq_lens_cpu=torch.tensor(known) - 1)


@pytest.fixture
def worker_factory(algorithm):
    """SGLang's worker class without a model behind it."""

    def make():
        worker = object.__new__(algorithm.factory(None))
        worker.draft_token_num, worker.topk, worker.enable_overlap = NODES, 8, False
        worker.server_args = SimpleNamespace(tp_size=1)
        worker._target_worker = SimpleNamespace(tokenizer=None)
        worker.model_runner = SimpleNamespace(model_config=SimpleNamespace(vocab_size=500))
        worker.ngram_corpus = SimpleNamespace(external_corpus_max_tokens=100)
        worker.req_to_token_pool = SimpleNamespace(req_to_token=torch.zeros(4, 1))
        worker.device = "cpu"
        worker.start_drafts()
        return worker

    return make


@pytest.fixture
def worker(worker_factory):
    return worker_factory()


def verified(worker, requests, continues):
    """What SGLang's tree builder and greedy verifier accept if the target goes on as told."""
    builder = pytest.importorskip(
        "sglang.kernels.ops.speculative.reconstruct_tree",
        reason="this version of SGLang builds trees in compiled kernels alone",
    )
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton

    count = len(requests)
    tokens, mask = worker._prepare_draft_tokens(batch_of(requests))
    positions = torch.zeros(count * NODES, dtype=torch.int64)
    index, child, sibling = (torch.zeros(count, NODES, dtype=torch.int64) for _ in range(3))
    lengths = torch.tensor([50 + len(each.output_ids) for each in requests])
    builder.reconstruct_indices_from_tree_mask_triton(
        torch.from_numpy(mask), lengths, positions, index, child, sibling, count, NODES
    )
    depths = mask.reshape(count, NODES, NODES).sum(-1) - 1
    assert (positions.view(count, NODES) == lengths[:, None] + torch.from_numpy(depths)).all()
    drafted = tokens.reshape(count, NODES)
    target = np.array([[continues[token] for token in row] for row in drafted.tolist()])
    predicted = torch.full((count * NODES,), -1, dtype=torch.int32)
    accepted = torch.full((count, NODES), -1, dtype=torch.int32)
    correct = torch.zeros(count, dtype=torch.int32)
    verify_tree_greedy_triton(
        predicted,
        accepted,
        correct,
        torch.from_numpy(drafted),
        index,
        child,
        sibling,
        torch.from_numpy(target),
    )
    return [predicted[row[row >= 0]].tolist() for row in accepted]


def test_sglangs_verifier_accepts_a_copy_and_its_next_token(worker):
    continues = {token: token + 1 for token in range(200)}
    [written] = verified(worker, [request("a", [10, 11, 12])], continues)
    assert written == list(range(13, 13 + NODES))


def test_sglangs_verifier_stops_where_the_target_differs(worker):
    continues = {token: token + 1 for token in range(200)} | {14: 99}
    requests = [request("a", [10, 11, 12]), request("b", [70])]
    copied, unknown = verified(worker, requests, continues)
    assert copied == [13, 14, 99]
    assert unknown == [71]


def test_a_requests_documents_are_drafted_from(worker):
    continues = {token: token + 1 for token in range(400)}
    documents = [list(range(300, 320))]
    with_one, without = verified(
        worker,
        [request("a", [300, 301], documents=documents), request("b", [300, 301])],
        continues,
    )
    assert len(with_one) == NODES
    assert without == [302]
