"""The draft head in a target's own checkpoint: its first layer for multi-token prediction (MTP).

Embedding and output layer are the target's, and the sizes too. A checkpoint may have more than one
layer, for later tokens; the first one drafts all of them, from its own outputs.
"""

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graft.errors import CheckpointError, UnsupportedModelError
from graft.models.checkpoints.folder import read_header, weight_files
from graft.models.checkpoints.mtp_layouts import MtpLayout, mtp_tensors
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.eagle_head import EagleHead
from graft.models.heads.config import MTP, HeadConfig, head_config, sizes_of
from graft.models.heads.files import DTYPES, filled
from graft.models.llama_files import FolderTensors

if TYPE_CHECKING:
    from transformers import PretrainedConfig

REFUSED = {
    "experts": re.compile(r"mlp\.(experts|shared_experts?|gate)\."),
    "latent attention (MLA)": re.compile(r"self_attn\.(q_a|kv_a|kv_b)_proj"),
    "quantised weights": re.compile(r"(_scale|_scale_inv|\.scales|\.qweight)$"),
}
INSTEAD = "name a draft model or a head (--draft-model, --head) or use --draft auto"


def read_mtp(checkpoint: Checkpoint, target: "PretrainedConfig") -> EagleHead:
    """The head, its weights in their stored dtype. CheckpointError where the checkpoint has no MTP
    layer, UnsupportedModelError for a layer of a kind that is not computed here."""
    names = _stored_names(checkpoint)
    found = mtp_tensors(names, getattr(target.get_text_config(), "num_hidden_layers", 0))
    if found is None:
        raise CheckpointError(f"{checkpoint.name} has no MTP layers; {INSTEAD}")
    layout, own = found
    _refuse(checkpoint, own.values())
    tensors, weights = FolderTensors(checkpoint.folder), {}
    for name, part in own.items():
        if ours := layout.our_name(part):
            weights[ours] = tensors.load(name)
    if any(weight.dtype not in DTYPES.values() for weight in weights.values()):
        raise _unsupported(checkpoint, "quantised weights")
    config = _config(checkpoint, target, weights)
    if config.gated:
        _split_gate(weights, config)
    return filled(config, _as_ours(weights, layout), checkpoint.folder)


def _stored_names(checkpoint: Checkpoint) -> set[str]:
    if checkpoint.gguf is not None:  # transformers' names are not in there
        return set()
    return {
        name for file in weight_files(checkpoint.folder) for name in read_header(file)["tensors"]
    }


def _refuse(checkpoint: Checkpoint, parts: Collection[str]) -> None:
    for what, pattern in REFUSED.items():
        if any(pattern.search(part) for part in parts):
            raise _unsupported(checkpoint, what)


def _unsupported(checkpoint: Checkpoint, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the MTP layer of {checkpoint.name} has {what}, which Graft does not draft with; {INSTEAD}"
    )


def _config(
    checkpoint: Checkpoint, target: "PretrainedConfig", weights: dict[str, Tensor]
) -> HeadConfig:
    """The target's sizes, and what the layer's own tensors say."""
    sizes = sizes_of(target, checkpoint.name)
    queries, inner = (
        weights.get(f"layer.{name}.weight") for name in ("self_attn.q_proj", "mlp.gate_proj")
    )
    width = sizes["heads"] * sizes["head_size"]
    own = {
        "inner": sizes["inner"] if inner is None else len(inner),
        "attention_bias": "layer.self_attn.q_proj.bias" in weights,
        "head_norms": "layer.self_attn.q_norm.weight" in weights,
        "gated": queries is not None and len(queries) == 2 * width,
        "rotary_share": float(sizes["rope"].get("partial_rotary_factor") or 1.0),
    }
    return head_config(MTP, checkpoint, target, **own)


def _split_gate(weights: dict[str, Tensor], config: HeadConfig) -> None:
    """Queries and gates are stored head by head, in turns."""
    name = "layer.self_attn.{}_proj.weight"
    both = weights[name.format("q")].unflatten(0, (config.heads, 2, config.head_size))
    for place, each in enumerate("qg"):
        weights[name.format(each)] = both[:, place].flatten(0, 1)


def _as_ours(weights: dict[str, Tensor], layout: MtpLayout) -> dict[str, Tensor]:
    """The weights with the token before the hidden state, and whole norms."""
    if layout.hidden_first:
        weights["fc.weight"] = torch.cat(weights["fc.weight"].chunk(2, 1)[::-1], 1)
    if layout.centred:
        norms = {name: weight for name, weight in weights.items() if weight.dim() == 1}
        weights |= {name: 1 + weight.float() for name, weight in norms.items()}
    return weights
