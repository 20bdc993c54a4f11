"""Drafts found on the device for vLLM's asynchronous scheduling, their kernels interpreted."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from graft.errors import InputError
from graft.integrations import vllm_device
from graft.integrations.vllm_device import DeviceDrafts, Rates, read_rates, register
from graft.kernels.copy_triton import RATE_UNIT

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTH = 400
DRAFTED = 6


class Rows:
    """Rows of a batch as vLLM keeps them, whose tokens are known in advance."""

    def __init__(self, texts: list[list[int]], prompts: list[int]) -> None:
        self.texts, self.lengths = texts, list(prompts)
        self.text = torch.zeros(len(texts), LENGTH, dtype=torch.int32, device=DEVICE)
        for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
            self.text[row, :prompt] = torch.tensor(text[:prompt])
        self.rates, self.accepted, self.steps = [], 0, 0

    def step(self, drafts: DeviceDrafts, draft: list[list[int]]) -> list[list[int]]:
        """Verify drafts: the accepted tokens and one more; then the next drafts."""
        width = max(map(len, draft)) + 1
        new = torch.full((len(draft), width), -1, dtype=torch.int32)
        counts = torch.zeros(len(draft), dtype=torch.int32)
        for row, tokens in enumerate(draft):
            rest = self.texts[row][self.lengths[row] :]
            same = next((i for i, x in enumerate(tokens) if x != rest[i]), len(tokens))
            new[row, : same + 1] = torch.tensor(rest[: same + 1])
            counts[row] = same + 1
            self.accepted += same
        lengths = torch.tensor(self.lengths, dtype=torch.int32, device=DEVICE)
        found, rates = drafts.propose(
            DRAFTED, lengths, self.text, new.to(DEVICE), counts.to(DEVICE)
        )
        self.lengths = [a + int(b) for a, b in zip(self.lengths, counts, strict=True)]
        self.steps += 1
        for row, text in enumerate(self.texts):
            assert self.text[row, : self.lengths[row]].tolist() == text[: self.lengths[row]]
        self.rates.append([rate / RATE_UNIT for rate in rates.tolist()])
        assert found.shape == (len(draft), DRAFTED)
        assert (found >= 0).all()
        return found.tolist()


def run(texts: list[list[int]], prompts: list[int], tokens: int) -> Rows:
    rows, drafts = Rows(texts, prompts), DeviceDrafts(DRAFTED, 4, DEVICE)
    draft: list[list[int]] = [[] for _ in texts]
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
    text = [token for number in range(100) for token in (1, 1, 1, 100 + number)]
    rows = run([text], [40], 200)
    at_the_new_token = [rates[0] for rates in rows.rates[-20:] if rates[0]]
    assert min(at_the_new_token) < 0.3


def test_warming_up_leaves_no_trace():
    warm, cold = (DeviceDrafts(DRAFTED, 4, DEVICE) for _ in range(2))
    warm.warm_up(torch.zeros(1, LENGTH, dtype=torch.int32, device=DEVICE))
    text = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8] + [0] * 56], dtype=torch.int32, device=DEVICE)
    one = torch.ones(1, dtype=torch.int32, device=DEVICE)
    (first, rate), (other, same) = (
        each.propose(3, 8 * one, text.clone(), 9 * one[:, None], one) for each in (warm, cold)
    )
    assert first.tolist() == other.tolist() == [[7, 8, 9]]
    assert rate.tolist() == same.tolist()


def test_rates_are_read_without_waiting():
    reported = torch.tensor([RATE_UNIT // 2, -(2**30), 2**30, 7], dtype=torch.int32)
    read_rates(None, reported, None, {"a": 0, "b": 1, "c": 2})
    assert Rates.latest == [0.5, 0.0, 1.0]
    Rates.latest = None


class OwnProposer:
    def update_token_ids_ngram(self, *_: object) -> str:
        return "own"


class OwnScheduler:
    """What vLLM's asynchronous scheduler does with the width of drafts."""

    def __init__(self, vllm_config: SimpleNamespace) -> None:
        self.vllm_config = vllm_config
        self.num_spec_tokens = vllm_config.speculative_config.num_speculative_tokens
        self.scheduled: list[int] = []

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
        "vllm": {}, "vllm.v1": {}, "vllm.v1.core": {}, "vllm.config": {},
        "vllm.config.compilation": {"CompilationConfig": OwnCompilation},
        "vllm.v1.core.sched": {}, "vllm.v1.spec_decode": {},
        "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": OwnScheduler},
        "vllm.v1.spec_decode.ngram_proposer_gpu": {
            "NgramProposerGPU": OwnProposer, "update_scheduler_for_invalid_drafts": None},
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
    monkeypatch.setattr(Rates, "latest", None)
    monkeypatch.setenv(vllm_device.SWITCH, "1")
    return modules


CONFIG = SimpleNamespace(
    speculative_config=SimpleNamespace(num_speculative_tokens=3, method="ngram_gpu"),
    model_config=SimpleNamespace(max_model_len=64),
    scheduler_config=SimpleNamespace(max_num_seqs=2),
)


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
    assert search.NgramProposerGPU is runner.NgramProposerGPU is replaced
    assert runner.update_scheduler_for_invalid_drafts is read_rates
    assert issubclass(replaced, OwnProposer)
    proposer = replaced(CONFIG, DEVICE, None)
    proposer.load_model()
    batch = SimpleNamespace(vocab_size=100)
    text = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8, 9] + [0] * 55], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([9], dtype=torch.int32, device=DEVICE)
    sampled = torch.tensor([[7, -1]], dtype=torch.int32, device=DEVICE)
    kept = torch.zeros(2, dtype=torch.bool, device=DEVICE)
    last, counts, valid = proposer.update_token_ids_ngram(sampled, batch, text, lengths, kept)
    assert (last.tolist(), counts.tolist()) == ([7], [1])
    found, rates = proposer.propose(3, lengths, text, valid, counts)
    assert found.tolist() == [[8, 9, 7]]
    assert rates.item() > RATE_UNIT // 2
    assert proposer.update_token_ids_ngram([[7]], batch, text, lengths, kept) == "own"


def scheduled(rows: dict[str, int], drafts: dict[str, list[int]], *, new: bool) -> SimpleNamespace:
    return SimpleNamespace(
        num_scheduled_tokens=rows,
        scheduled_spec_decode_tokens=drafts,
        scheduled_new_reqs=[1] * new,
        num_spec_tokens_to_schedule=3,
    )


def test_the_scheduler_gives_likely_drafts_and_no_others(vllm):
    register()
    scheduler = vllm["vllm.v1.core.sched.async_scheduler"].AsyncScheduler(CONFIG)
    step = scheduled({"a": 4, "b": 4}, {"a": [-1] * 3, "b": [-1] * 3}, new=False)
    for rates in ([0.0, 0.0], [0.95, 0.9], [0.0, 0.9]):
        Rates.latest = rates
        scheduler._update_after_schedule(step)
    assert scheduler.scheduled[0] == 0
    assert scheduler.scheduled[1] == 3
    assert scheduler.scheduled[2] > 0
    sampled = SimpleNamespace(sampled_token_ids=[[1, 2], [3]])
    assert scheduler.update_from_output(step, sampled) == "outputs"


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
    monkeypatch.setattr(scheduler._draft_width, "observe", lambda *step: seen.append(step[:2]))
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


def test_a_vllm_without_the_method_is_refused(vllm, monkeypatch):
    monkeypatch.delattr(vllm["vllm.v1.spec_decode.ngram_proposer_gpu"], "NgramProposerGPU")
    with pytest.raises(InputError, match="needs a vLLM with the speculative method ngram_gpu"):
        register()
