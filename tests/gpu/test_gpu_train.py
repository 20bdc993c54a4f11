"""Heads learn on a GPU in bf16, and their loss stays small in memory at a real vocabulary."""

import json
from pathlib import Path

import pytest
import torch
from tiny import tiny_network, tiny_tokenizer

from graft.models.heads.files import read_head
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


@pytest.mark.parametrize(("kind", "layers"), [("eagle2", 1), ("longspec", 1), ("longspec", 2)])
def test_a_head_learns(tmp_path, kind, layers):
    tiny_network().save_pretrained(tmp_path / "target")
    tiny_tokenizer().save_pretrained(tmp_path / "target")
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
    layer = OutputLayer.of(whole, torch.arange(16384, device="cuda"))
    outputs = torch.randn(1, tokens, width, device="cuda", requires_grad=True)
    weights = torch.ones(1, tokens, device="cuda")
    supervision = Supervision(torch.randn(tokens, width, device="cuda"), None, weights)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss, _ = cross_entropy(outputs, supervision, layer)
    loss.backward()
    assert torch.cuda.max_memory_allocated() - before < 2.5 * GIGABYTE
    assert outputs.grad.isfinite().all()
