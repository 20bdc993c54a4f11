"""Draft heads as modules: training in one pass equals what inference does step by step."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny import tiny_network

from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.eagle_head import EagleHead
from graft.models.heads.config import head_config
from graft.models.heads.layers import CrossAttention
from graft.models.heads.row_masks import chain_masks, shift_mask, window_mask
from graft.models.longspec_head import LongSpecHead

CHECKPOINT = Checkpoint("tiny", Path("nowhere"), "tiny")
TARGET = tiny_network().config
LENGTH, WIDTH = 12, TARGET.hidden_size


@pytest.fixture(autouse=True)
def one_seed():
    torch.manual_seed(5)


def row_of(documents):
    return torch.tensor([documents])


ONE = row_of([0] * LENGTH)
TWO = row_of([0] * 5 + [1] * 7)


def longspec_masks(head, documents, shifts):
    masks = [shift_mask(documents, shift) for shift in shifts]
    return window_mask(documents, head.config.window), masks


def naive_attention(module, queries, keys, values):
    """One query row [H, D] over keys and values [S, K, D], head by head."""
    outputs = []
    for head in range(len(queries)):
        group = head // module.groups
        weights = F.softmax(keys[:, group] @ queries[head] / module.head_size**0.5, 0)
        outputs.append(weights @ values[:, group])
    return module.o_proj(torch.cat(outputs))


def naive_eagle(head, embeddings, features, positions, steps):
    """The output of the last step for each column of one document, drafted token by token: the
    target's features up to column t - (steps - 1), then the head's own outputs."""
    attention = head.layer.self_attn

    def row(token, feature, position):
        fused = head.fuse(token, feature)[None, None]
        rotary = head.rotary(position.view(1, 1))
        normed = head.layer.normed(fused)
        key, value = attention.keys_values(normed, rotary)
        return fused[0, 0], attention.queries(normed, rotary)[0, :, 0], key[0, :, 0], value[0, :, 0]

    last = {}
    for start in range(LENGTH - steps + 1):
        keys, values, made = [], [], None
        for t in range(start + steps):
            feature = head.project(features[t]) if t <= start else made
            fused, query, key, value = row(embeddings[t], feature, positions[t])
            keys.append(key)
            values.append(value)
            attended = naive_attention(attention, query, torch.stack(keys), torch.stack(values))
            made = head.layer.after(fused, attended)
        last[start + steps - 1] = head.norm(made)
    return last


every_eagle = pytest.mark.parametrize(
    ("kind", "more"),
    [("eagle2", {}), ("eagle3", {}), ("eagle3", {"norm_before_residual": True, "kv_heads": 4})],
)


@every_eagle
@pytest.mark.parametrize("steps", [1, 2, 4])
@torch.no_grad()
def test_eagle_unrolled_equals_drafting_step_by_step(kind, more, steps):
    head = EagleHead(head_config(kind, CHECKPOINT, TARGET, **more))
    embeddings = torch.randn(LENGTH, WIDTH)
    features = torch.randn(LENGTH, head.config.num_features * WIDTH)
    positions = torch.arange(LENGTH)
    made = head(embeddings[None], features[None], positions[None], chain_masks(ONE, steps))[-1, 0]
    for column, expected in naive_eagle(head, embeddings, features, positions, steps).items():
        torch.testing.assert_close(made[column], expected, rtol=1e-4, atol=1e-5)


@every_eagle
@torch.no_grad()
def test_eagle_does_not_attend_to_other_documents(kind, more):
    head = EagleHead(head_config(kind, CHECKPOINT, TARGET, **more))
    embeddings = torch.randn(1, LENGTH, WIDTH)
    features = torch.randn(1, LENGTH, head.config.num_features * WIDTH)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
    packed = head(embeddings, features, positions, chain_masks(TWO, 3))
    alone = head(
        embeddings[:, 5:], features[:, 5:], positions[:, 5:], chain_masks(row_of([0] * 7), 3)
    )
    for step in range(3):  # chains that begin before their document are not in the loss
        torch.testing.assert_close(packed[step, :, 5 + step :], alone[step, :, step:])


def parts_of(head):
    """Its cross-attention as one of a single layer for each layer it looks at."""
    count, whole, parts = head.config.cross_layers, head.cross_attn, []
    for number in range(count):
        part = CrossAttention(head.config)
        part.q_proj.weight.data = whole.q_proj.weight.chunk(count, 0)[number]
        part.o_proj.weight.data = whole.o_proj.weight.chunk(count, 1)[number]
        parts.append(part)
    return parts


def naive_longspec(head, embeddings, memory, positions, shift):
    """Column by column with plain sums: the window's keys, then the target's up to t - shift."""
    rotary = head.rotary(positions[None])
    normed = head.input_layernorm(embeddings)[None]
    keys, values = (x[0].transpose(0, 1) for x in head.self_attn.keys_values(normed, rotary))
    queries = head.self_attn.queries(normed, rotary)[0]
    rows = []
    for t in range(len(embeddings)):
        first = max(0, t - head.config.window + 1)
        hidden = embeddings[t] + naive_attention(
            head.self_attn, queries[:, t], keys[first : t + 1], values[first : t + 1]
        )
        if t >= shift:
            turned = head.rotary(positions[None, t : t + 1])
            normed, looked = head.cross_layernorm(hidden)[None, None], 0
            for number, part in enumerate(parts_of(head)):
                seen = (
                    x[0].chunk(head.config.cross_layers)[number][:, : t - shift + 1] for x in memory
                )
                query = part.queries(normed, turned)[0, :, 0]
                looked = looked + naive_attention(part, query, *(x.transpose(0, 1) for x in seen))
            hidden = hidden + looked
        hidden = hidden + head.mlp(head.post_attention_layernorm(hidden))
        rows.append(head.norm(hidden))
    return torch.stack(rows)


@pytest.mark.parametrize(("final_norm", "layers"), [(True, 1), (False, 1), (True, 2), (True, 3)])
@pytest.mark.parametrize("shift", [1, 2, 4])
@torch.no_grad()
def test_longspec_attends_to_its_window_and_to_target_keys_up_to_the_shift(
    shift, final_norm, layers
):
    options = {"window": 5, "final_norm": final_norm, "cross_layers": layers}
    head = LongSpecHead(head_config("longspec", CHECKPOINT, TARGET, **options))
    embeddings = torch.randn(LENGTH, WIDTH)
    heads = layers * TARGET.num_key_value_heads
    memory = tuple(torch.randn(2, 1, heads, LENGTH, TARGET.head_dim))
    positions = torch.cat([torch.arange(4), torch.arange(4, LENGTH) + 100])
    masks = longspec_masks(head, ONE, [1, shift])
    made = head(embeddings[None], memory, positions[None], *masks)
    for place, each in enumerate((1, shift)):
        expected = naive_longspec(head, embeddings, memory, positions, each)
        torch.testing.assert_close(made[place, 0], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_longspec_does_not_attend_to_other_documents():
    head = LongSpecHead(head_config("longspec", CHECKPOINT, TARGET))
    embeddings = torch.randn(1, LENGTH, WIDTH)
    keys, values = torch.randn(2, 1, TARGET.num_key_value_heads, LENGTH, TARGET.head_dim)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
    packed = head(embeddings, (keys, values), positions, *longspec_masks(head, TWO, [2]))
    alone = head(
        embeddings[:, 5:],
        (keys[:, :, 5:], values[:, :, 5:]),
        positions[:, 5:],
        *longspec_masks(head, row_of([0] * 7), [2]),
    )
    torch.testing.assert_close(packed[:, :, 5:], alone)


def test_gradients_are_finite_where_nothing_is_seen():
    head = LongSpecHead(head_config("longspec", CHECKPOINT, TARGET))
    embeddings = torch.randn(1, 3, WIDTH)
    memory = tuple(torch.randn(2, 1, TARGET.num_key_value_heads, 3, TARGET.head_dim))
    masks = longspec_masks(head, row_of([0] * 3), [4])
    head(embeddings, memory, torch.arange(3)[None], *masks).sum().backward()
    assert all(p.grad.isfinite().all() for p in head.parameters() if p.grad is not None)
