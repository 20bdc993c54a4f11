"""Draft heads for the tiny target, made in memory: random ones, and ones that often agree with it.

The tiny target's last token mostly determines its next one. A head that passes the token's
embedding on and has small other weights therefore agrees with it often.
"""

from pathlib import Path
from typing import Any

import torch

from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.heads.config import head_config
from graft.models.heads.files import HEADS, Head

CHECKPOINT = Checkpoint("tiny", Path("nowhere"), "tiny")
KINDS = tuple(HEADS)
SMALL = 0.02  # spread of the weights of a head that agrees


def tiny_head(
    kind: str,
    network: torch.nn.Module,
    *,
    knows: bool = True,
    sees_target: bool = True,
    **more: Any,
) -> Head:
    """A head of a kind for a network; `more` goes to its config. Without `sees_target` its
    cross-attention outputs zeros."""
    torch.manual_seed(3)
    if kind == "eagle3":
        heads = network.config.num_attention_heads
        more = {"feature_layers": (0, 1, -1), "kv_heads": heads} | more
    head = HEADS[kind](head_config(kind, CHECKPOINT, network.config, **more)).eval()
    drafted = torch.randperm(head.config.vocabulary)[: head.config.draft_vocabulary]
    head.d2t.copy_(drafted)
    if knows:
        for weight in head.parameters():
            if weight.dim() > 1:
                weight.data.normal_(0, SMALL)
        if kind in ("eagle2", "mtp"):
            head.fc.weight.data[:, : head.config.hidden] += torch.eye(head.config.hidden)
        if kind == "eagle3":
            _pass_tokens_on(head, network)
    if not sees_target:
        head.cross_attn.o_proj.weight.data.zero_()
    return head


def _pass_tokens_on(head: Head, network: torch.nn.Module) -> None:
    """Every node attends to itself and adds its token minus its feature, so outputs are tokens."""
    config, attention = head.config, head.layer.self_attn
    one = torch.eye(config.hidden)
    for each in (attention.q_proj, attention.k_proj):
        each.weight.data[:, : config.hidden] += 2 * one
    attention.v_proj.weight.data += torch.cat([one, -one], 1)
    attention.o_proj.weight.data += one
    head.fc.weight.data.normal_(0, head.fc.in_features**-0.5)
    if head.lm_head is not None:
        head.lm_head.weight.data = network.lm_head.weight.detach()[head.d2t].clone()
