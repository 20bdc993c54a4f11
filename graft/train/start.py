"""The weights a new head begins with.

LongSpec's begin as what they stand in for: its own attention reads embeddings like the target's
first layer, its cross-attention and MLP read the target's memory like the last one, and that of
layers before it like these. In EAGLE's fusion embeddings and features begin with the same say: they
differ in size by far.
"""

import torch
from torch import Tensor, nn

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


@torch.no_grad()
def take_over(head: LongSpecHead, before: LongSpecHead) -> None:
    """Let a new head go on from one that looks at fewer layers: what the others say begins with
    nothing, so that both guess the same."""
    known = before.state_dict()
    for name, value in head.state_dict().items():
        given = known[name].to(value.dtype)
        if name == "cross_attn.o_proj.weight":
            value[:, given.shape[1] :] = 0
            value[:, : given.shape[1]] = given
        else:
            value[: len(given)] = given


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
        (head.post_attention_layernorm, last.post_attention_layernorm),
        (head.mlp, last.mlp),
        (head.norm, decoder.norm),
    ]
    for ours, theirs in copied:
        _copy(dict(ours.named_parameters()), theirs)
    for number in range(head.config.cross_layers):
        _copy(_heads_of(head, number), decoder.layers[-1 - number].self_attn)


def _copy(ours: dict[str, Tensor], theirs: nn.Module) -> None:
    given = dict(theirs.named_parameters())
    for name, parameter in ours.items():
        if name in given and given[name].shape == parameter.shape:
            parameter.copy_(given[name].float())


def _heads_of(head: LongSpecHead, number: int) -> dict[str, Tensor]:
    """The part of the cross-attention that looks at one layer, counted from the last."""
    return {
        name: parameter.chunk(head.config.cross_layers, int(name == "o_proj.weight"))[number]
        for name, parameter in head.cross_attn.named_parameters()
    }
