"""Products with experts' matrices against plain torch; see test_decoder_triton.py."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from same import assert_same

from graft.kernels.experts_triton import TILE, choose_experts, expert_product, weighted_sum

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERTS, INPUTS, OUTPUTS = 5, 150, 40


def made(nodes: int, chosen: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Experts of nodes, the nodes' cache rows and all matrices."""
    torch.manual_seed(nodes)
    experts = torch.stack([torch.randperm(EXPERTS)[:chosen] for _ in range(nodes)]).to(DEVICE)
    weights = torch.randn(EXPERTS, OUTPUTS, INPUTS, device=DEVICE)
    return experts, torch.arange(nodes, device=DEVICE), weights


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("nodes", "chosen"), [(1, 2), (3, 4), (2 * TILE + 3, 2)])
def test_every_pair_is_multiplied_with_its_expert(nodes, chosen, transposed):
    experts, rows, weights = made(nodes, chosen)
    given = weights.transpose(1, 2).contiguous() if transposed else weights
    x = torch.randn(nodes, INPUTS, device=DEVICE)
    pairs = x.repeat_interleave(chosen, 0)
    expected = torch.einsum("si,soi->so", pairs, weights[experts.flatten()])
    for rows_of_x in (x, pairs):
        found = expert_product(rows_of_x, experts, rows, given, transposed=transposed)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_pairs_do_not_depend_on_others_and_padding_is_skipped():
    experts, rows, weights = made(7, 3)
    x = torch.randn(7, INPUTS, device=DEVICE)
    together = expert_product(x, experts, rows, weights)
    alone = expert_product(x[2:3].contiguous(), experts[2:3], rows[2:3], weights)
    assert_same(together[6:9], alone)
    rows[[0, 3]] = -1
    some = expert_product(x, experts, rows, weights).view(7, 3, -1)
    kept = [1, 2, 4, 5, 6]
    assert torch.equal(some[kept], together.view(7, 3, -1)[kept])


@pytest.mark.parametrize("among_chosen", [True, False])
def test_the_highest_logits_are_chosen(among_chosen):
    torch.manual_seed(0)
    logits = 2 * torch.randn(6, 13, device=DEVICE)
    logits[0, 3] = logits[0, 7] = 9.0  # of equals the first
    weights, numbers = choose_experts(logits, 3, among_chosen=among_chosen, dtype=torch.float32)
    assert numbers[0, :2].tolist() == [3, 7]
    expected = torch.topk(logits.softmax(-1), 3)
    assert torch.equal(numbers[1:], expected.indices[1:])
    values = expected.values
    if among_chosen:
        values = values / values.sum(-1, keepdim=True)
    torch.testing.assert_close(weights, values)


def test_what_is_no_number_chooses_experts_that_exist():
    logits = torch.full((2, 5), float("nan"), device=DEVICE)
    _, numbers = choose_experts(logits, 2, among_chosen=True, dtype=torch.float32)
    assert bool(((numbers >= 0) & (numbers < 5)).all())


def test_pairs_are_summed_by_their_weights():
    torch.manual_seed(0)
    pairs, weights = torch.randn(12, 70, device=DEVICE), torch.randn(4, 3, device=DEVICE)
    expected = (pairs.view(4, 3, 70) * weights[..., None]).sum(1)
    torch.testing.assert_close(weighted_sum(pairs, weights), expected, rtol=1e-5, atol=1e-5)
