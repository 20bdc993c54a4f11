"""Drafts found on the device for vLLM's asynchronous scheduling, their kernels interpreted."""

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY

pytest.importorskip("triton", reason="triton is not installed")

from graft.errors import InputError
from graft.integrations import vllm_device
from graft.integrations.device_drafts import SEARCHED, ReportedRates
from graft.integrations.vllm_device import (
    CORRECTION,
    RowDrafts,
    Shared,
    follow_rows,
    input_ids_of,
    metadata_of,
    read_rates,
    register,
)
from graft.kernels.copy_triton import RATE_UNIT

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTH = 400
DRAFTED = 6


class Rows:
    """Rows of a batch as vLLM keeps them, whose tokens are known in advance."""

    def __init__(self, texts: list[list[int]], prompts: list[int]) -> None:
        self.texts, self.lengths = texts, list(prompts)
        self.text = torch.zeros(len(texts), LENGTH, dtype=torch.int32, device=DEVICE)
        self.known = torch.zeros(len(texts), LENGTH, dtype=torch.int32)
        for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
            self.known[row, :prompt] = torch.tensor(text[:prompt])
        self.rates, self.accepted, self.steps = [], 0, 0

    def step(self, drafts: RowDrafts, draft: list[list[int]]) -> list[list[int]]:
        """Verify drafts: the accepted tokens and one more; then the next drafts."""
        width = max(map(len, draft)) + 1
        new = torch.full((len(draft), width), -1, dtype=torch.int32)
        for row, tokens in enumerate(draft):
            rest = self.texts[row][self.lengths[row] :]
            same = next((i for i, x in enumerate(tokens) if x != rest[i]), len(tokens))
            new[row, : same + 1] = torch.tensor(rest[: same + 1])
            self.lengths[row] += same + 1
            self.accepted += same
        kept = torch.zeros(len(draft), dtype=torch.bool, device=DEVICE)
        _, counts, _ = drafts.append(new.to(DEVICE), kept, self.text)
        found, rates = drafts.propose(DRAFTED, self.text, len(counts))
        self.steps += 1
        for row, text in enumerate(self.texts):
            assert self.text[row, : self.lengths[row]].tolist() == text[: self.lengths[row]]
        self.rates.append([rate / RATE_UNIT for rate in rates.tolist()])
        assert found.shape == (len(draft), DRAFTED)
        assert (found >= 0).all()
        return found.tolist()


def run(texts: list[list[int]], prompts: list[int], tokens: int) -> Rows:
    rows, drafts = Rows(texts, prompts), RowDrafts(DRAFTED, 4, 1000, DEVICE)
    draft: list[list[int]] = [[] for _ in texts]
    places = {str(row): row for row in range(len(texts))}
    drafts.follow(places, set(places), rows.text, rows.known, prompts)
    while min(rows.lengths) < min(prompts) + tokens:
        draft = rows.step(drafts, draft)
    return rows


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(10, 30, count).tolist()


def test_copied_text_takes_few_steps_and_has_high_rates():
    source = random_tokens(60, 0)
    rows = run([source * 3, [5, *source * 3]], [60, 61], 50)
    assert rows.steps < 20
    assert min(rows.rates[-1]) > 0.8


def test_text_without_copies_has_low_rates():
    rows = run([random_tokens(200, 1), random_tokens(200, 2)], [60, 60], 40)
    assert np.mean(rows.rates[20:]) < 0.3  # single tokens of twenty match everywhere


def test_misleading_matches_get_low_rates():
    """What follows a match was never there before."""
    text = [token for number in range(40) for token in (1, 1, 1, 100 + number)]
    rows = run([text], [40], 100)
    at_the_new_token = [rates[0] for rates in rows.rates[-20:] if rates[0]]
    assert min(at_the_new_token) < 0.3


def started(text: list[int], *, warm: bool = False) -> tuple[RowDrafts, torch.Tensor]:
    drafts = RowDrafts(DRAFTED, 4, 1000, DEVICE)
    if warm:
        drafts.warm_up(torch.zeros(1, LENGTH, dtype=torch.int32, device=DEVICE))
    known = torch.tensor([text])
    on_device = torch.zeros(4, LENGTH, dtype=torch.int32, device=DEVICE)
    drafts.follow({"a": 0}, {"a"}, on_device, known, [len(text)])
    return drafts, on_device


def sample(drafts: RowDrafts, text: torch.Tensor, *tokens: int) -> torch.Tensor:
    sampled = torch.tensor(tokens, dtype=torch.int32, device=DEVICE)[:, None]
    return len(drafts.append(sampled, sampled[:, 0] < 0, text)[1])


def test_warming_up_leaves_no_trace():
    results = []
    for warm in (True, False):
        drafts, text = started([7, 8, 9, 7, 8, 9, 7, 8], warm=warm)
        found, rates = drafts.propose(3, text, sample(drafts, text, 9))
        results.append((found.tolist(), rates.tolist()))
    assert results[0] == results[1]
    assert results[0][0] == [[7, 8, 9]]


def test_plain_steps_search_now_and_then():
    drafts, text = started([7, 8, 9, 7, 8, 9, 7, 8])
    steps = [drafts.propose(0, text, sample(drafts, text, 7)) for _ in range(3 * SEARCHED)]
    assert all(draft.shape == (1, 0) for draft, _ in steps)
    assert [rates is not None for _, rates in steps] == ([False] * (SEARCHED - 1) + [True]) * 3
    assert drafts.propose(2, text, sample(drafts, text, 7))[1] is not None


def test_rows_follow_their_requests():
    drafts, text = started([7, 8, 9, 7])
    known = torch.tensor([[7, 8, 9, 7], [1, 2, 3, 1], [4, 5, 4, 0]])
    drafts.follow({"a": 0, "b": 1, "c": 2}, {"b", "c"}, text, known, [4, 4, 3])
    found, _ = drafts.propose(1, text, sample(drafts, text, 8, 2, 5))
    assert found.tolist() == [[9], [3], [4]]
    drafts.follow({"c": 0, "b": 1}, set(), text, known, [])  # a has left
    found, _ = drafts.propose(1, text, sample(drafts, text, 4, 3))
    assert found.tolist() == [[5], [1]]
    drafts.follow({"c": 1, "b": 0}, set(), text, known, [])
    found, _ = drafts.propose(1, text, sample(drafts, text, 1, 5))
    assert found.tolist() == [[2], [4]]
    known[1, :3] = torch.tensor([6, 5, 6])
    drafts.follow({"d": 1, "b": 0}, {"d"}, text, known, [0, 3])
    found, _ = drafts.propose(1, text, sample(drafts, text, 2, 5))
    assert found.tolist() == [[3], [6]]


def test_rates_are_read_without_waiting(monkeypatch):
    """What is there for a request that came or moved since is another's rate."""
    for name, value in (("rates", None), ("reported", ReportedRates())):
        monkeypatch.setattr(Shared, name, value)
    reported = torch.tensor([RATE_UNIT // 2, -(2**30), 2**30, 7], dtype=torch.int32)
    read_rates(None, reported, None, {"a": 0, "b": 1, "c": 2})
    assert Shared.rates == {}
    read_rates(None, reported, None, {"a": 0, "b": 1, "c": 2})
    assert Shared.rates == {"a": 0.5, "b": 0.0, "c": 1.0}
    read_rates(None, reported, None, {"a": 0, "c": 1, "d": 2})
    assert Shared.rates == {"a": 0.5}


@dataclass
class Metadata:
    draft_token_ids: torch.Tensor
    rows: tuple[int, ...]


def test_metadata_of_equal_drafts_is_computed_once(monkeypatch):
    monkeypatch.setattr(vllm_device, "REMEMBERED", 2)
    input_ids, computed = torch.arange(100, 140, dtype=torch.int32), []

    def compute(drafted, ends):
        computed.append(drafted.tolist())
        starts = ends - drafted - 1
        places = [range(a + 1, a + 1 + b) for a, b in zip(starts, drafted, strict=True)]
        return Metadata(input_ids[[each for row in places for each in row]], tuple(ends))

    metadata = metadata_of(compute, input_ids)
    cases = [([3, 3], [4, 8]), ([3, 3], [4, 8]), ([1, 1, 1], [2, 4, 6]), ([3, 3], [4, 8])]
    cases += [([3], [4]), ([3, 0], [4, 5]), ([3, 3], [5, 9]), ([0, 0], [1, 2]), ([3, 0], [4, 5])]
    cases += [([1, 1, 1], [2, 4, 6])]  # forgotten since
    for drafted, ends in cases:
        given = np.array(drafted), np.array(ends)
        found, wanted = metadata(*given), compute(*given)
        computed.pop()
        assert found.draft_token_ids.tolist() == wanted.draft_token_ids.tolist()
        assert found.draft_token_ids.is_contiguous()
        assert found.rows == wanted.rows
        input_ids += 1
    assert computed == [[3, 3], [1, 1, 1], [3], [3, 0], [3, 3], [0, 0], [3, 0], [1, 1, 1]]


class OwnProposer:
    pass


@torch.compile(backend="eager")
def corrected(*_: torch.Tensor) -> None:
    """vLLM's correction of lengths."""


class OwnRunner:
    """What a proposer uses of vLLM's model runner."""

    def __init__(self) -> None:
        self.num_tokens_no_spec_gpu = torch.zeros(2, dtype=torch.int32, device=DEVICE)
        self.token_ids_gpu_tensor = torch.zeros(2, 64, dtype=torch.int32, device=DEVICE)
        self.input_batch = SimpleNamespace(prev_sampled_token_ids=None)
        self.input_ids = SimpleNamespace(gpu=torch.zeros(64, dtype=torch.int32, device=DEVICE))
        self.copied = 0

    def _calc_spec_decode_metadata(self, *_: object) -> None:
        pass

    def _prepare_input_ids(self, *_: object) -> None:
        pass

    def _copy_valid_sampled_token_count(self, *_: object) -> None:
        self.copied += 1


class OwnScheduler:
    """What vLLM's asynchronous scheduler does with the width of drafts."""

    def __init__(self, vllm_config: SimpleNamespace) -> None:
        self.vllm_config = vllm_config
        self.num_spec_tokens = vllm_config.speculative_config.num_speculative_tokens
        self.scheduled: list[int] = []
        self.running: list[SimpleNamespace] = []
        self.waiting: list[SimpleNamespace] = []
        self.max_num_running_reqs = 3

    def schedule(self) -> list[int]:
        return [len(each.spec_token_ids) for each in self.running]

    def _update_after_schedule(self, scheduler_output: SimpleNamespace) -> None:
        self.scheduled.append(scheduler_output.num_spec_tokens_to_schedule)

    def update_from_output(self, *_: object) -> str:
        return "outputs"


class OwnCompilation:
    """What vLLM does with graph sizes: multiples of the rows of a request."""

    def __init__(self, mode: str) -> None:
        self.mode = SimpleNamespace(name=mode)
        self.cudagraph_capture_sizes, self.max_cudagraph_capture_size = [1, 2, 4, 8, 16], 16

    def resolve_cudagraph_mode_and_sizes(self, rows: int) -> SimpleNamespace:
        self.cudagraph_capture_sizes, self.max_cudagraph_capture_size = [rows], rows
        return self.mode


@pytest.fixture
def vllm(monkeypatch):
    """vLLM's modules with the names that the plug-in replaces."""
    contents = {
        "vllm": {"__version__": "0.24.0"}, "vllm.v1": {}, "vllm.v1.core": {}, "vllm.config": {},
        "vllm.config.compilation": {"CompilationConfig": OwnCompilation},
        "vllm.v1.core.sched": {}, "vllm.v1.spec_decode": {},
        "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": OwnScheduler},
        "vllm.v1.spec_decode.ngram_proposer_gpu": {
            "NgramProposerGPU": OwnProposer, "update_scheduler_for_invalid_drafts": None,
            "update_ngram_gpu_tensors_incremental": None},
        "vllm.v1.spec_decode.utils": {CORRECTION: corrected},
        "vllm.v1.worker.gpu_model_runner": {"NgramProposerGPU": OwnProposer},
    }  # fmt: skip
    modules = {}
    for name, names in contents.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(names)
        parent, _, last = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], last, modules[name])
        monkeypatch.setitem(sys.modules, name, modules[name])
    resolve = OwnCompilation.resolve_cudagraph_mode_and_sizes
    monkeypatch.setattr(OwnCompilation, "resolve_cudagraph_mode_and_sizes", resolve)
    for name, value in (("rates", None), ("reported", ReportedRates()), ("proposer", None)):
        monkeypatch.setattr(Shared, name, value)
    monkeypatch.setenv(vllm_device.SWITCH, "1")
    letters = SimpleNamespace(encode=lambda text, **_: [ord(each) for each in text])
    monkeypatch.setattr(vllm_device, "tokenizer_of", lambda _: letters)
    return modules


CONFIG = SimpleNamespace(
    speculative_config=SimpleNamespace(num_speculative_tokens=3, method="ngram_gpu"),
    model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 1000),
    scheduler_config=SimpleNamespace(max_num_seqs=2),
)


def test_rows_of_sampled_and_draft_tokens_are_copied_where_all_requests_decode_again():
    ids, calls = torch.zeros(8, dtype=torch.int32), []
    runner = SimpleNamespace(
        input_ids=SimpleNamespace(gpu=ids), enable_prompt_embeds=False,
        prev_positions=SimpleNamespace(np=np.array([0, 1, 7])),
        input_batch=SimpleNamespace(prev_sampled_token_ids=torch.tensor([[5], [6]])),
        _draft_token_ids=torch.tensor([[50, 51], [60, 61]], dtype=torch.int32),
    )  # fmt: skip
    prepare = input_ids_of(lambda *given: calls.append(given), runner)
    step = SimpleNamespace(scheduled_spec_decode_tokens={"a": [-1] * 2, "b": [-1] * 2})
    prepare(step, 2, 6, None)
    assert ids.tolist() == [5, 50, 51, 6, 60, 61, 0, 0]
    assert not calls
    prepare(step, 3, 8, None)  # with a prompt of two tokens
    runner.prev_positions.np = np.array([1, 0])
    prepare(step, 2, 6, None)  # the rows have moved
    step.scheduled_spec_decode_tokens = {}
    prepare(step, 2, 2, None)  # without drafts
    runner.input_batch.prev_sampled_token_ids = None
    prepare(step, 2, 6, None)
    assert [each[1:3] for each in calls] == [(3, 8), (2, 6), (2, 2), (2, 6)]


@pytest.mark.parametrize(
    ("prompts", "kept"),
    [([], [3, 3]), ([9], [0, 0]), ([20], [3, 3]), ([2], [3, 3]), ([9, 30], [0, 0])],
)
def test_prompts_that_leave_no_room_for_drafts_in_a_cuda_graph_have_none_beside(
    vllm, prompts, kept
):
    """Graphs have up to 16 tokens, and the last prompt waits until another request ends."""
    register()
    config = SimpleNamespace(
        **vars(CONFIG), compilation_config=SimpleNamespace(max_cudagraph_capture_size=16)
    )
    scheduler = vllm["vllm.v1.core.sched.async_scheduler"].AsyncScheduler(config)
    scheduler.running = [SimpleNamespace(spec_token_ids=[-1] * 3) for _ in range(2)]
    scheduler.waiting = [SimpleNamespace(num_tokens=tokens) for tokens in prompts]
    assert scheduler.schedule() == kept


def new_request(name: str, **extra: object) -> SimpleNamespace:
    return SimpleNamespace(req_id=name, sampling_params=SimpleNamespace(extra_args=extra))


def test_the_plug_in_replaces_vllms_search_once_and_only_if_asked(vllm, monkeypatch):
    search = vllm["vllm.v1.spec_decode.ngram_proposer_gpu"]
    runner = vllm["vllm.v1.worker.gpu_model_runner"]
    monkeypatch.delenv(vllm_device.SWITCH)
    register()
    assert search.NgramProposerGPU is OwnProposer
    monkeypatch.setenv(vllm_device.SWITCH, "1")
    register()
    replaced = search.NgramProposerGPU
    register()
    for module in (runner, vllm["vllm.v1.spec_decode.utils"]):
        assert getattr(module, CORRECTION) is corrected._torchdynamo_orig_callable
    assert search.NgramProposerGPU is runner.NgramProposerGPU is replaced
    assert runner.update_scheduler_for_invalid_drafts is read_rates
    assert issubclass(replaced, OwnProposer)
    assert runner.update_ngram_gpu_tensors_incremental is follow_rows


def test_the_proposer_keeps_vllms_contract(vllm):
    register()
    runner = OwnRunner()
    proposer = vllm["vllm.v1.spec_decode.ngram_proposer_gpu"].NgramProposerGPU(
        CONFIG, DEVICE, runner
    )
    proposer.load_model()
    known = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8, 9]], dtype=torch.int32)
    batch = SimpleNamespace(
        vocab_size=100,
        req_id_to_index={"a": 0},
        token_ids_cpu_tensor=known,
        num_tokens_no_spec=[9],
    )
    text = torch.zeros(2, 64, dtype=torch.int32, device=DEVICE)
    kept = torch.zeros(2, dtype=torch.bool, device=DEVICE)
    follow_rows(batch, text, None, [new_request("a")], DEVICE, _pinned_idx_buf=None)
    assert isinstance(runner.num_tokens_no_spec_gpu, np.ndarray)
    sampled = torch.tensor([[7]], dtype=torch.int32, device=DEVICE)
    last, counts, valid = proposer.update_token_ids_ngram(sampled, batch, text, None, kept)
    assert (last.tolist(), counts.tolist()) == ([7], [1])
    runner._copy_valid_sampled_token_count(last, counts)
    assert runner.input_batch.prev_sampled_token_ids.tolist() == [[7]]
    assert runner.copied == 0  # a plain step
    found, rates = proposer.propose(3, None, text, valid, counts)
    assert found.tolist() == [[8, 9, 7]]
    assert rates.item() > RATE_UNIT // 2
    sampled = torch.tensor([[8, 9, 7, -1]], dtype=torch.int32, device=DEVICE)
    last, counts, valid = proposer.update_token_ids_ngram(sampled, batch, text, None, kept)
    runner._copy_valid_sampled_token_count(last, counts)
    assert runner.copied == 1
    assert proposer.propose(0, None, text, valid, counts)[0].shape == (1, 0)


def drafts_of(vllm, request: SimpleNamespace, prompt: list[int], new: int) -> list[int]:
    """The first draft of a request."""
    register()
    runner = OwnRunner()
    proposer = vllm["vllm.v1.spec_decode.ngram_proposer_gpu"].NgramProposerGPU(
        CONFIG, DEVICE, runner
    )
    proposer.load_model()
    batch = SimpleNamespace(
        vocab_size=1000,
        req_id_to_index={request.req_id: 1},
        token_ids_cpu_tensor=torch.tensor([[0] * len(prompt), prompt], dtype=torch.int32),
        num_tokens_no_spec=[0, len(prompt)],
    )
    follow_rows(batch, runner.token_ids_gpu_tensor, None, [request])
    sampled = torch.tensor([[5], [new]], dtype=torch.int32, device=DEVICE)
    kept = torch.zeros(2, dtype=torch.bool, device=DEVICE)
    _, counts, valid = proposer.update_token_ids_ngram(
        sampled, batch, runner.token_ids_gpu_tensor, None, kept
    )
    found, _ = proposer.propose(3, None, runner.token_ids_gpu_tensor, valid, counts)
    return found[1].tolist()


def test_documents_and_prediction_of_a_request_are_copied(vllm):
    asks = new_request("a", graft={"documents": ["abcd", [200, 201, 202]], "prediction": "xyz"})
    assert drafts_of(vllm, asks, [7, 97], 98) == [99, 100, 0]  # nothing across a border
    assert drafts_of(vllm, asks, [7, 200], 201) == [202, 0, 120]
    assert drafts_of(vllm, asks, [7, 8], 120) == [121, 122, 0]
    assert drafts_of(vllm, asks, [120, 9, 8], 120) == [9, 8, 120]  # the prompt is later
    assert drafts_of(vllm, new_request("b"), [7, 97], 98) == [0, 0, 0]


def test_the_last_documents_that_a_row_has_room_for_are_copied(vllm, monkeypatch, caplog):
    monkeypatch.setenv("GRAFT_DOCUMENTS", "4")
    asks = new_request("a", graft={"documents": ["abc", "xyz"]})
    assert drafts_of(vllm, asks, [7, 120], 121) == [122, 0, 7]
    assert drafts_of(vllm, asks, [7, 97], 98) == [0, 0, 0]
    assert caplog.records[0].getMessage() == (
        "request a: drafts are copied from the last 4 of 8 tokens of documents and prediction; "
        "GRAFT_DOCUMENTS sets how many"
    )
    monkeypatch.setenv("GRAFT_DOCUMENTS", "many")
    with pytest.raises(InputError, match="GRAFT_DOCUMENTS is a number of tokens"):
        drafts_of(vllm, asks, [7, 97], 98)


def test_a_field_that_cannot_be_used_is_logged(vllm, monkeypatch, caplog):
    def none(_):
        raise OSError("no files")

    monkeypatch.setattr(vllm_device, "tokenizer_of", none)
    wrong = new_request("a", graft={"document": ["abc"]})
    assert drafts_of(vllm, wrong, [9, 8, 7, 9], 8) == [7, 9, 8]
    assert drafts_of(vllm, new_request("b", graft={"documents": ["abc"]}), [9, 8, 7, 9], 8)
    messages = [each.getMessage() for each in caplog.records]
    assert messages[0] == "graft: no tokenizer, documents must be token ids: no files"
    assert "request a: unknown field graft.document" in messages[1]
    assert "request b: graft has a text, but vLLM has no tokenizer; send token ids" in messages[3]


def test_drafts_on_the_host_are_refused(vllm):
    register()
    config = SimpleNamespace(**vars(CONFIG))
    config.speculative_config = SimpleNamespace(disable_padded_drafter_batch=True)
    with pytest.raises(InputError, match="disable_padded_drafter_batch"):
        vllm["vllm.v1.spec_decode.ngram_proposer_gpu"].NgramProposerGPU(config, DEVICE)


def scheduled(rows: dict[str, int], drafts: dict[str, list[int]], *, new: bool) -> SimpleNamespace:
    return SimpleNamespace(
        num_scheduled_tokens=rows,
        scheduled_spec_decode_tokens=drafts,
        scheduled_new_reqs=[1] * new,
        num_spec_tokens_to_schedule=3,
    )


def counted() -> list[float]:
    """vLLM's metrics: draft tokens and how many of them were accepted."""
    return [
        REGISTRY.get_sample_value(f"graft:{kind}_tokens_total", {"source": "text"}) or 0
        for kind in ("draft", "accepted")
    ]


def test_the_scheduler_gives_likely_drafts_and_no_others(vllm):
    register()
    scheduler = vllm["vllm.v1.core.sched.async_scheduler"].AsyncScheduler(CONFIG)
    step = scheduled({"a": 4, "b": 4}, {"a": [-1] * 3, "b": [-1] * 3}, new=False)
    for rates in ({"a": 0.0}, {"a": 0.95, "b": 0.9}, {"a": 0.0, "b": 0.9, "left": 0.0}):
        Shared.rates = rates
        scheduler._update_after_schedule(step)
    assert scheduler.scheduled[0] == 0
    assert scheduler.scheduled[1] == 3
    assert scheduler.scheduled[2] > 0
    sampled = SimpleNamespace(sampled_token_ids=[[1, 2], [3]])
    before = counted()
    assert scheduler.update_from_output(step, sampled) == "outputs"
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [6, 1]


@pytest.mark.parametrize("shown", [True, False], ids=["one process", "several"])
def test_ranks_of_tensor_parallel_make_the_same_drafts(vllm, monkeypatch, shown):
    """One scheduler chooses the widths; each rank finds drafts in its own copy of the text. With
    several processes the scheduler gets no rates of the ranks."""
    register()
    monkeypatch.setattr(vllm_device.time, "perf_counter", iter(np.arange(0, 9, 0.01)).__next__)
    scheduler = vllm["vllm.v1.core.sched.async_scheduler"].AsyncScheduler(CONFIG)
    source = random_tokens(12, 3)
    text = source + source + random_tokens(3, 4) + source
    ranks = [started(text[:12]) for _ in range(2)]
    length, width, widths = 12, 0, []
    draft: list[int] = []
    while length < 30:
        same = next((i for i, x in enumerate(draft) if x != text[length + i]), len(draft))
        new = text[length : length + same + 1]
        length += len(new)
        padded = torch.tensor([[*new, *[-1] * (width + 1 - len(new))]], dtype=torch.int32)
        step = scheduled({"a": width + 1}, {"a": [-1] * width} if width else {}, new=False)
        scheduler.update_from_output(step, SimpleNamespace(sampled_token_ids=[new]))
        scheduler._update_after_schedule(step)
        width = step.num_spec_tokens_to_schedule
        found = []
        for drafts, on_device in ranks:
            kept = torch.zeros(1, dtype=torch.bool, device=DEVICE)
            _, counts, _ = drafts.append(padded.to(DEVICE), kept, on_device)
            tokens, rates = drafts.propose(width, on_device, len(counts))
            found.append((tokens.tolist(), None if rates is None else rates.tolist()))
        assert found[0] == found[1]
        [draft] = found[0][0]
        if shown and rates is not None:
            read_rates(None, rates, None, {"a": 0})
        widths.append(width)
    assert max(widths) > 0


def test_other_speculation_is_left_alone(vllm):
    register()
    config = SimpleNamespace(speculative_config=SimpleNamespace(**vars(CONFIG.speculative_config)))
    config.speculative_config.method = "eagle"
    scheduler = vllm["vllm.v1.core.sched.async_scheduler"].AsyncScheduler(config)
    step = scheduled({"a": 1}, {}, new=False)
    scheduler._update_after_schedule(step)
    assert scheduler.scheduled == [3]
    assert scheduler.update_from_output(step, None) == "outputs"


def test_only_steps_that_decode_with_equal_drafts_are_timed(vllm, monkeypatch):
    register()
    scheduler = vllm["vllm.v1.core.sched.async_scheduler"].AsyncScheduler(CONFIG)
    seen = []
    monkeypatch.setattr(scheduler._steps.width, "observe", lambda *step: seen.append(step[:2]))
    monkeypatch.setattr(vllm_device.time, "perf_counter", lambda: 0.01)
    drafts = {"a": [-1] * 3, "b": [-1] * 3}
    for rows, draft, new in (
        ({"a": 4, "b": 4}, drafts, False),
        ({"a": 1, "b": 1}, {}, False),
        ({"a": 4, "b": 1}, {"a": [-1] * 3}, False),
        ({"a": 4, "b": 4}, {}, False),  # pieces of prompts
        ({"a": 1, "b": 1}, {}, True),
    ):
        output = SimpleNamespace(sampled_token_ids=[[1, 2], [3]])
        scheduler.update_from_output(scheduled(rows, draft, new=new), output)
    assert seen == [(3, [2, 1]), (0, [2, 1])]


@pytest.mark.parametrize(("mode", "sizes"), [("FULL", [1, 2, 4, 8, 16]), ("PIECEWISE", [4])])
def test_graphs_of_whole_steps_keep_all_sizes(vllm, mode, sizes):
    register()
    config = vllm["vllm.config.compilation"].CompilationConfig(mode)
    assert config.resolve_cudagraph_mode_and_sizes(4).name == mode
    assert config.cudagraph_capture_sizes == sizes
    assert config.max_cudagraph_capture_size == sizes[-1]


@pytest.mark.parametrize("version", ["0.32.0", "0.25.1+cu130", "0.2.4"])
def test_another_version_of_vllm_is_refused_and_left_alone(vllm, version):
    vllm["vllm"].__version__ = version
    with pytest.raises(InputError, match="GRAFT_VLLM=1 is tested with vLLM 0.24.x, this is"):
        register()
    assert vllm["vllm.v1.spec_decode.ngram_proposer_gpu"].NgramProposerGPU is OwnProposer


def test_an_untested_version_can_be_tried(vllm, monkeypatch):
    vllm["vllm"].__version__ = "0.25.1"
    monkeypatch.setenv("GRAFT_UNTESTED", "1")
    register()
    assert vllm["vllm.v1.spec_decode.ngram_proposer_gpu"].NgramProposerGPU is not OwnProposer


def test_a_vllm_without_the_method_is_refused(vllm, monkeypatch):
    monkeypatch.delattr(vllm["vllm.v1.spec_decode.ngram_proposer_gpu"], "NgramProposerGPU")
    with pytest.raises(InputError, match="needs a vLLM with the speculative method ngram_gpu"):
        register()
