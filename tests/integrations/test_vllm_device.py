"""Drafts found on the device for vLLM's asynchronous scheduling, their kernels interpreted."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from graft.errors import InputError
from graft.integrations import vllm_device
from graft.integrations.vllm_device import DeviceDrafts, register

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTH = 400


class Rows:
    """Rows of a batch as vLLM keeps them, whose tokens are known in advance."""

    def __init__(self, texts: list[list[int]], prompts: list[int]) -> None:
        self.texts, self.lengths = texts, list(prompts)
        self.text = torch.zeros(len(texts), LENGTH, dtype=torch.int32, device=DEVICE)
        for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
            self.text[row, :prompt] = torch.tensor(text[:prompt])
        self.drafted, self.accepted, self.steps = 0, 0, 0

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
            self.drafted, self.accepted = self.drafted + len(tokens), self.accepted + same
        lengths = torch.tensor(self.lengths, dtype=torch.int32, device=DEVICE)
        found, valid = drafts.propose(lengths, self.text, new.to(DEVICE), counts.to(DEVICE))
        self.lengths = [a + int(b) for a, b in zip(self.lengths, counts, strict=True)]
        self.steps += 1
        for row, text in enumerate(self.texts):
            assert self.text[row, : self.lengths[row]].tolist() == text[: self.lengths[row]]
        kept = [row[:count] for row, count in zip(found.tolist(), valid.tolist(), strict=True)]
        assert all(token >= 0 for row in kept for token in row)
        assert all(
            token == -1 for row, k in zip(found.tolist(), valid, strict=True) for token in row[k:]
        )
        return kept


def run(texts: list[list[int]], prompts: list[int], tokens: int) -> Rows:
    rows, drafts = Rows(texts, prompts), DeviceDrafts(6, 4, LENGTH, DEVICE)
    draft: list[list[int]] = [[] for _ in texts]
    while min(rows.lengths) < min(prompts) + tokens:
        draft = rows.step(drafts, draft)
    return rows


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(10, 30, count).tolist()


def test_copied_text_takes_few_steps():
    source = random_tokens(60, 0)
    rows = run([source * 3, [5, *source * 3]], [60, 61], 50)
    assert rows.accepted > 0.9 * rows.drafted
    assert rows.steps < 20


def test_text_without_copies_gets_no_drafts():
    rows = run([random_tokens(200, 1), random_tokens(200, 2)], [60, 60], 40)
    assert rows.steps >= 38
    assert rows.drafted < 40  # single tokens of twenty match everywhere


def test_misleading_matches_are_given_up():
    """What follows a match was never there before."""
    text = [token for number in range(100) for token in (1, 1, 1, 100 + number)]
    rows = run([text], [40], 200)
    assert rows.drafted > 0
    assert rows.drafted < 0.2 * rows.steps


def test_drafts_end_before_the_longest_context():
    drafts = DeviceDrafts(6, 4, 12, DEVICE)
    text = torch.tensor([[4, 5, 6, 7, 4, 5, 6, 7, 0, 0, 0, 0]], dtype=torch.int32, device=DEVICE)
    one = torch.ones(1, dtype=torch.int32, device=DEVICE)
    found, valid = drafts.propose(8 * one, text, 4 * one[:, None], one)
    assert valid.tolist() == [2]
    assert found.tolist() == [[5, 6, -1, -1, -1, -1]]


@pytest.fixture
def vllm(monkeypatch):
    module = ModuleType("vllm.v1.spec_decode.ngram_proposer_gpu")
    module.NgramProposerGPU = type("NgramProposerGPU", (), {"update_token_ids_ngram": lambda *_: 1})
    runner = ModuleType("vllm.v1.worker.gpu_model_runner")
    runner.NgramProposerGPU = module.NgramProposerGPU
    parent = ModuleType("vllm.v1.spec_decode")
    parent.ngram_proposer_gpu = module
    for each in (module, runner, parent, ModuleType("vllm"), ModuleType("vllm.v1")):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    return module, runner


def test_the_plug_in_replaces_vllms_search_once_and_only_if_asked(vllm, monkeypatch):
    module, runner = vllm
    own = module.NgramProposerGPU
    monkeypatch.delenv(vllm_device.SWITCH, raising=False)
    register()
    assert module.NgramProposerGPU is own
    monkeypatch.setenv(vllm_device.SWITCH, "1")
    register()
    replaced = module.NgramProposerGPU
    register()
    assert module.NgramProposerGPU is runner.NgramProposerGPU is replaced
    assert issubclass(replaced, own)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        model_config=SimpleNamespace(max_model_len=64),
        scheduler_config=SimpleNamespace(max_num_seqs=2),
    )
    proposer = replaced(config, DEVICE, None)
    proposer.load_model()
    assert proposer.update_token_ids_ngram() == 1
    text = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8, 9] + [0] * 55], dtype=torch.int32, device=DEVICE)
    one = torch.ones(1, dtype=torch.int32, device=DEVICE)
    found, valid = proposer.propose(3, 9 * one, text, 7 * one[:, None], one)
    assert found[:, : int(valid)].tolist() == [[8, 9, 7]]


def test_a_vllm_without_the_method_is_refused(monkeypatch):
    monkeypatch.setenv(vllm_device.SWITCH, "1")
    for name in ("vllm", "vllm.v1", "vllm.v1.spec_decode"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(InputError, match="needs a vLLM with the speculative method ngram_gpu"):
        register()
