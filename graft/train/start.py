"""The initial weights of a head.

LongSpec copies the target: its self-attention from the first layer, its cross-attention and MLP
from the last layer and, for further layers, from these. EAGLE-3 copies the output layer. In EAGLE's
fusion all parts are scaled to contribute equally, because the magnitudes of embeddings and hidden
states differ by far.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from graft.models.eagle_head import EagleHead
from graft.models.heads.files import Head
from graft.models.longspec_head import LongSpecHead

STD = 0.02
SAMPLE_IDS = 256


@torch.no_grad()
def init_random(head: Head, seed: int) -> None:
    """Matrices from a normal distribution, biases 0, norms 1; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        if parameter.dim() > 1:
            drawn = torch.randn(parameter.shape, generator=generator) * STD
            parameter.copy_(drawn)
    for module in head.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()


@torch.no_grad()
def init_from_target(head: Head, network: PreTrainedModel) -> None:
    """Copy weights of the target whose shapes match, over random ones."""
    if isinstance(head, LongSpecHead):
        _copy_layers(head, network.base_model)
        return
    _balance_fusion(head, network)
    output = network.get_output_embeddings().weight[head.d2t].float()
    if head.lm_head is not None:
        head.lm_head.weight.copy_(output)
    for weight in head.norm.parameters():  # logits of a standard deviation of 1
        weight.fill_(1 / output.norm(dim=1).median())


@torch.no_grad()
def widen(head: Head, before: Head) -> None:
    """Copy a head that attends to fewer layers; the further layers contribute 0 at first, so both
    heads draft the same."""
    known = before.state_dict()
    for name, value in head.state_dict().items():
        given = known[name].to(value.dtype)
        if name == "cross_attn.o_proj.weight":
            value[:, given.shape[1] :] = 0
            value[:, : given.shape[1]] = given
        else:
            value[: len(given)] = given


def _balance_fusion(head: EagleHead, network: PreTrainedModel) -> None:
    """Scale the parts of the fusion so that its output has a standard deviation of 1. The median
    leaves out the few tokens whose hidden states are huge."""
    embedding = network.get_input_embeddings().weight
    some = torch.arange(min(len(embedding), SAMPLE_IDS), device=embedding.device)[None]
    states = network.base_model(some, use_cache=False, output_hidden_states=True).hidden_states
    parts = [states[layer] for layer in head.config.feature_layers]
    if head.config.kind == "eagle2":
        parts.insert(0, embedding[some])
    for weight, part in zip(head.fc.weight.chunk(len(parts), 1), parts, strict=True):
        size = part.float().pow(2).mean(-1).sqrt().median().item()
        weight *= head.fc.in_features**-0.5 / (STD * size)


def _copy_layers(head: LongSpecHead, decoder: PreTrainedModel) -> None:
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
    """The part of the cross-attention for one layer, counted from the last."""
    return {
        name: parameter.chunk(head.config.cross_layers, int(name == "o_proj.weight"))[number]
        for name, parameter in head.cross_attn.named_parameters()
    }
