"""Heads learn on a GPU in bf16, and their loss stays small in memory at a real vocabulary."""

import json
from pathlib import Path

import pytest
import torch
from tiny import save_tiny

from graft.models.heads.files import read_head
from graft.models.heads.row_masks import FAR, dense_mask, masked_attention, row_mask
from graft.train.journal import read_notes
from graft.train.losses import OutputLayer, Supervision, cross_entropy
from graft.train.run import train
from graft.train.settings import Settings

pytestmark = pytest.mark.gpu
GIGABYTE = 1e9


def written_chats(path: Path) -> Path:
    words = "the contract can be ended in writing and the other side has to answer".split()
    lines = []
    for number in range(200):
        turned = words[number % len(words) :] + words[: number % len(words)]
        turns = [
            {"role": "user", "content": f"Question {number}?"},
            {"role": "assistant", "content": " ".join(turned * 3)},
        ]
        lines.append(json.dumps({"messages": turns}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("bands", [[(0, FAR)], [(0, 200)], [(3, FAR), (2, 3), (1, 2), (0, 1)]])
def test_sparse_attention_has_the_outputs_and_gradients_of_dense_attention(bands):
    documents = (torch.arange(512, device="cuda") // 200).expand(2, -1)
    limits = torch.tensor(bands, device="cuda")
    shapes = [(2, 4, 512, 64), (2, 2, 512 * len(bands), 64), (2, 2, 512 * len(bands), 64)]
    given = [torch.randn(each, device="cuda", requires_grad=True) for each in shapes]
    results = []
    for mask in (row_mask(documents, *bands), dense_mask(documents, limits)):
        found = masked_attention(*given, mask)
        results.append([found, *torch.autograd.grad(found.square().sum(), given)])
    for sparse, dense in zip(*results, strict=True):
        torch.testing.assert_close(sparse, dense, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("kind", "layers"), [("eagle3", 1), ("eagle2", 1), ("longspec", 1), ("longspec", 2)]
)
def test_a_head_learns(tmp_path, kind, layers):
    save_tiny(tmp_path / "target")
    settings = Settings(
        kind=kind, data=(str(written_chats(tmp_path / "chats.jsonl")),), out=tmp_path / "head",
        model=str(tmp_path / "target"), length=128, batch=8, micro_batch=4, steps=150,
        learning_rate=3e-3, cross_layers=layers, draft_vocabulary=64, held_out=0.1, evaluations=2,
        device="cuda",
    )  # fmt: skip
    assert train(settings, lambda line: None)
    measured = [
        note["tokens_per_step"]
        for note in read_notes(settings.work / "log.jsonl")
        if "tokens_per_step" in note
    ]
    assert measured[-1] > 1.3
    assert all(weight.isfinite().all() for weight in read_head(settings.out).parameters())


def test_the_loss_needs_no_memory_for_all_logits():
    tokens, vocabulary, width = 32768, 49152, 64  # all logits would be 6.4 GB in fp32
    whole = torch.randn(vocabulary, width, device="cuda", dtype=torch.bfloat16)
    layer = OutputLayer(whole, whole[:16384], torch.arange(16384, device="cuda"))
    outputs = torch.randn(1, tokens, width, device="cuda", requires_grad=True)
    weights = torch.ones(1, tokens, device="cuda")
    supervision = Supervision(torch.randn(tokens, width, device="cuda"), None, weights)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss, _ = cross_entropy(outputs, supervision, layer)
    loss.backward()
    assert torch.cuda.max_memory_allocated() - before < 2.5 * GIGABYTE
    assert outputs.grad.isfinite().all()
