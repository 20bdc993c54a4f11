"""The weights a new head begins with.

LongSpec's begin as what they stand in for: its own attention reads embeddings like the target's
first layer, its cross-attention and MLP read the target's memory like the last one. In EAGLE's
fusion embeddings and features begin with the same say: they differ in size by far.
"""

import torch
from torch import nn

from graft.models.eagle_head import EagleHead
from graft.models.heads.files import Head
from graft.models.longspec_head import LongSpecHead

SPREAD = 0.02
SOME_IDS = 256


@torch.no_grad()
def draw_weights(head: Head, seed: int) -> None:
    """Matrices from a normal distribution, biases 0, norms 1; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        if parameter.dim() > 1:
            drawn = torch.randn(parameter.shape, generator=generator) * SPREAD
            parameter.copy_(drawn)
    for module in head.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()


@torch.no_grad()
def begin_like_target(head: Head, network: nn.Module) -> None:
    """On top of drawn weights: what can be taken from the target, where the shapes are the same."""
    if isinstance(head, EagleHead):
        _even_out(head, network)
    else:
        _copy_layers(head, network.base_model)


def _even_out(head: EagleHead, network: nn.Module) -> None:
    """Scale the fusion's two halves so that what it adds up has a spread of about 1."""
    embedding = network.get_input_embeddings().weight
    some = torch.arange(min(len(embedding), SOME_IDS), device=embedding.device)[None]
    features = network.base_model(some, use_cache=False).last_hidden_state
    width = head.config.hidden
    for half, given in ((slice(0, width), embedding[some]), (slice(width, None), features)):
        size = given.float().pow(2).mean().sqrt().item()
        head.fc.weight[:, half] *= (2 * width) ** -0.5 / (SPREAD * size)


def _copy_layers(head: LongSpecHead, decoder: nn.Module) -> None:
    first, last = decoder.layers[0], decoder.layers[-1]
    copied = [
        (head.input_layernorm, first.input_layernorm),
        (head.self_attn, first.self_attn),
        (head.cross_layernorm, last.input_layernorm),
        (head.cross_attn, last.self_attn),
        (head.post_attention_layernorm, last.post_attention_layernorm),
        (head.mlp, last.mlp),
        (head.norm, decoder.norm),
    ]
    for ours, theirs in copied:
        given = dict(theirs.named_parameters())
        for name, parameter in ours.named_parameters():
            if name in given and given[name].shape == parameter.shape:
                parameter.copy_(given[name].float())
