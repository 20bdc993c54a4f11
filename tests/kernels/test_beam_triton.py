"""A beam's level by our kernels against torch's top-k (through the interpreter without a GPU)."""

from itertools import product

import pytest
import torch
from daily import daily

pytest.importorskip("triton", reason="triton is not installed")

from graft.kernels.beam_triton import PART, Nodes, Step, advance, best_children, joined_pairs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def level(batch, width, random):
    """Nodes of a level somewhere in a tree."""
    nodes = Nodes.empty(batch * width, DEVICE)
    for each in (nodes.tokens, nodes.above, nodes.rows):
        each.zero_()
    for each in (nodes.numbers, nodes.bits):
        each.copy_(torch.randint(0, 40, each.shape, generator=random))
    nodes.positions.copy_(torch.arange(batch).repeat_interleave(width) * 100 + 7)
    nodes.scores.copy_(torch.randn(batch * width, generator=random))
    return nodes


LEVELS = list(product([40, PART, 2 * PART + 100], [(1, 16, 4), (4, 16, 16), (10, 10, 7)]))


@pytest.mark.parametrize(
    ("vocabulary", "level_size"),
    daily(LEVELS, LEVELS[1], LEVELS[2], LEVELS[3], LEVELS[6]),
)
@pytest.mark.parametrize("keeps_all", [True, False])
def test_level_equals_torch(vocabulary, level_size, keeps_all):
    width, children, size = level_size
    random = torch.Generator().manual_seed(vocabulary + width)
    batch, first, above = 2, 11, 5
    logits = (3 * torch.randn(batch * width, vocabulary, generator=random)).to(DEVICE)
    tokens = torch.randperm(5 * vocabulary, generator=random)[:vocabulary].to(DEVICE)
    nodes, tree_rows = level(batch, width, random), torch.tensor([300, 700]).to(DEVICE)
    added = width * children if keeps_all else size
    pool = torch.full((3, batch, first + added), -1, dtype=torch.int32, device=DEVICE)
    step = Step(children, size, first, above, keeps_all)
    following = advance(nodes, best_children(logits, children), step, tokens, tree_rows, pool)

    logs, ids = logits.double().log_softmax(-1).topk(children)
    totals = (nodes.scores.double()[:, None] + logs).view(batch, -1)
    best = totals.topk(size)
    parents = best.indices // children
    whole = torch.arange(batch, device=DEVICE)[:, None]
    scores = following.scores.view(batch, -1).double()
    torch.testing.assert_close(scores, best.values, atol=1e-5, rtol=1e-5)
    assert torch.equal(following.above.view(batch, -1), whole * width + parents)
    chosen = tokens[ids].view(batch, -1).gather(1, best.indices)
    assert torch.equal(following.tokens.view(batch, -1), chosen)
    places = torch.arange(size, device=DEVICE)
    seen = nodes.bits.view(batch, -1).gather(1, parents) | (1 << (above + places))
    assert torch.equal(following.bits.view(batch, -1), seen)
    assert torch.equal(following.rows.view(batch, -1), tree_rows[:, None] + above + places)
    assert (following.positions.view(batch, -1) == whole * 100 + 8).all()
    numbers = best.indices if keeps_all else places.expand_as(parents)
    assert torch.equal(following.numbers.view(batch, -1), first + numbers)

    above_all = nodes.numbers.view(batch, width, 1).expand(-1, -1, children).flatten(1)
    kept = [tokens[ids].view(batch, -1), above_all, logs.view(batch, -1)]
    if not keeps_all:
        kept = [each.gather(1, best.indices) for each in kept]
    own = pool[:, :, first - 1 : first - 1 + added]
    assert torch.equal(own[0].long(), kept[0])
    assert torch.equal(own[1].long(), kept[1])
    found = own[2].contiguous().view(torch.float32).double()
    torch.testing.assert_close(found, kept[2], atol=1e-5, rtol=1e-5)
    assert (pool[:, :, : first - 1] == -1).all()
    assert (pool[:, :, first - 1 + added :] == -1).all()


def test_ties_are_resolved_in_order():
    logits = torch.zeros(1, 2 * PART, device=DEVICE)
    nodes = Nodes.roots(torch.tensor([3], device=DEVICE))
    pool = torch.zeros(3, 1, 8, dtype=torch.int32, device=DEVICE)
    tokens, rows = torch.arange(2 * PART, device=DEVICE), torch.tensor([0], device=DEVICE)
    step = Step(8, 4, 1, 0, keeps_all=True)
    following = advance(nodes, best_children(logits, 8), step, tokens, rows, pool)
    assert following.tokens.tolist() == [0, 1, 2, 3]
    assert pool[0, 0].tolist() == list(range(8))


@pytest.mark.parametrize("size", [48, 1100])
def test_pairs_are_concatenated(size):
    left, right = torch.randn(5, size, device=DEVICE), torch.randn(3, size, device=DEVICE)
    places = torch.tensor([2, 0, 1, 1, 2], device=DEVICE)
    assert torch.equal(joined_pairs(left, right, places), torch.cat([left, right[places]], 1))
