"""Our rotary positions have the bits of transformers'."""

import pytest
import torch
from tiny_architectures import config_of
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from graft.errors import UnsupportedModelError
from graft.models.rope import rope_of

YARN = {"rope_type": "yarn", "rope_theta": 1e6, "original_max_position_embeddings": 128}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip


@pytest.mark.parametrize("head_size", [16, 64, 128])
@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 1e5},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        LLAMA3,
        YARN | {"factor": 4.0},
        YARN | {"factor": 4.0, "truncate": False, "beta_fast": 20.0, "beta_slow": 2.0},
        YARN | {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7},
        YARN | {"factor": 2.0, "attention_factor": 1.25},
    ],
    ids=["default", "linear", "llama3", "yarn", "yarn betas", "yarn mscale", "yarn attention"],
)
def test_angles_have_the_bits_of_transformers(parameters, head_size):
    config = config_of("llama")
    config.head_dim, config.rope_parameters = head_size, dict(parameters)
    theirs = LlamaRotaryEmbedding(config)
    ours = rope_of(parameters, head_size, config.max_position_embeddings)
    positions = torch.tensor([[0, 1, 7, 127, 128, 500, 8191, 130_000]])
    cosine, sine = theirs(torch.empty(0), positions)
    found = ours.tables(positions)
    assert torch.equal(ours.frequencies, theirs.inv_freq)
    assert torch.equal(found[0], cosine[..., : head_size // 2])
    assert torch.equal(found[1], sine[..., : head_size // 2])


def test_frequencies_that_change_with_the_length_are_refused():
    with pytest.raises(UnsupportedModelError, match="dynamic"):
        rope_of({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 16, 512)
