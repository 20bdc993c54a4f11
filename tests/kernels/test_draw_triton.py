"""Draws with noise by our kernels against torch (through the interpreter without a GPU)."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from graft.kernels.draw_triton import PART, draw_rows, noisy_rows
from graft.sampling import gumbel

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def keys_of(count):
    drawn = np.random.default_rng(count).integers(-(2**63), 2**63 - 1, count)
    return torch.from_numpy(drawn).to(DEVICE)


@pytest.mark.parametrize("vocabulary", [50, PART, 2 * PART + 77])
def test_sample_is_the_argmax_of_scaled_logits_and_noise(vocabulary):
    random = torch.Generator().manual_seed(vocabulary)
    logits = (3 * torch.randn(6, vocabulary, generator=random)).to(DEVICE)
    logits[2, 3], logits[3] = -torch.inf, 0.0
    temperatures = torch.tensor([1.0, 0.7, 0.1, 2.0, 1.3, 1e-3], dtype=torch.float64).to(DEVICE)
    keys = keys_of(6)
    scaled = (logits / temperatures.float()[:, None]).double()
    expected = scaled + gumbel(keys[:, None], torch.arange(vocabulary, device=DEVICE))
    assert torch.equal(draw_rows(logits, keys, temperatures), expected.argmax(-1))


def test_nan_is_sampled_first():
    logits = torch.zeros(1, PART + 5, device=DEVICE)
    logits[0, [7, PART + 1]] = torch.nan
    one = torch.ones(1, dtype=torch.float64, device=DEVICE)
    assert draw_rows(logits, keys_of(1), one).tolist() == [7]


@pytest.mark.parametrize("vocabulary", [40, PART + 9])
def test_noise_equals_the_samplers(vocabulary):
    random = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(6, vocabulary, generator=random).to(DEVICE)
    tokens = torch.randperm(9 * vocabulary, generator=random)[:vocabulary].to(DEVICE)
    keys, heat = keys_of(3), torch.tensor([[1.0, 2.0, 0.5], [1.0, 0.0, 1.0]]).to(DEVICE)
    noise = gumbel(keys[:, None], tokens).repeat_interleave(2, 0)
    factor, share = heat.double().repeat_interleave(2, 1)[..., None]
    expected = factor * logits.double() + share * noise
    found = noisy_rows(logits, tokens, keys, heat)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
