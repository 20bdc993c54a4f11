"""Forwards over a Llama-shaped checkpoint's own tensors, and their verification.

A forward is verified on the first layers and the first tokens of the vocabulary. All layers are
computed alike, so two of them show whether it agrees with transformers' network; they take
megabytes where the whole network in float32 takes twice the 16-bit weights.
"""

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graft.errors import CheckpointError, InputError
from graft.models.checkpoints.folder import read_json
from graft.models.checkpoints.gguf import open_packed
from graft.models.checkpoints.pretrained import Checkpoint, widened
from graft.models.forward_choice import Facts, make_llama, reference, verify
from graft.models.forward_panels import PanelForward
from graft.models.gguf_weights import GgufTensors, read_blocks, why_not_packed
from graft.models.int8 import quantise
from graft.models.language_model import Forward
from graft.models.llama_files import open_tensors, read_files, tensor_names

log = logging.getLogger(__name__)

_LAYERS = 2
_TOKENS = 1008  # the probe's are below 1000


def choose_weights(
    checkpoint: Checkpoint, dtype: str, where: torch.device
) -> tuple[Checkpoint, str]:
    """The checkpoint with the weights to load, and their dtype: GGUF's own blocks if possible."""
    if dtype not in ("auto", "gguf"):
        return widened(checkpoint), dtype
    if checkpoint.gguf is None:
        if dtype == "gguf":
            raise InputError(f"{checkpoint.name} is not a GGUF file; use --dtype auto")
        return checkpoint, dtype
    config = read_json(checkpoint.folder / "config.json")
    reason = why_not_packed(open_packed(checkpoint.folder, checkpoint.gguf), config)
    if where.type != "cpu":
        reason = "GGUF blocks are multiplied on the CPU only"
    if reason is None:
        return checkpoint, "gguf"
    if dtype == "gguf":
        raise InputError(f"{checkpoint.name} cannot stay packed: {reason}; use --dtype bf16")
    log.info("%s is widened to 16 bits: %s", checkpoint.name, reason)
    return widened(checkpoint), dtype


def read_forward(
    checkpoint: Checkpoint, facts: Facts, kind: str, vocabulary: int | None = None
) -> Forward:
    """A forward over the checkpoint's own tensors, or over the first rows of its vocabulary."""
    if checkpoint.gguf is not None:
        blocks = GgufTensors(open_packed(checkpoint.folder, checkpoint.gguf), vocabulary)
        return PanelForward(*read_blocks(blocks, facts.config))
    files = open_tensors(checkpoint.folder, facts.config, vocabulary)
    dtype = None if kind == "panels" else facts.dtype  # panels are cast as they are packed
    packed = kind == "graphed" and facts.dtype != torch.float32
    read = read_files(files, facts.config, dtype, facts.device, int8=facts.int8, packed=packed)
    return make_llama(kind, *read, facts)


def verify_first_layers(
    checkpoint: Checkpoint,
    facts: Facts,
    kind: str,
    config: Any,  # noqa: ANN401
) -> None:
    """UnsupportedModelError unless a forward of the first layers agrees with the network that
    transformers makes of this config."""
    small = replace(facts, config=_first_layers(facts.config))
    rows = small.config.vocab_size
    tensors = (
        open_tensors(checkpoint.folder, facts.config, rows)
        if checkpoint.gguf is None
        else GgufTensors(open_packed(checkpoint.folder, checkpoint.gguf), rows)
    )
    try:
        network = _small_network(_first_layers(config), tensors.load)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{checkpoint.name} cannot be read: {reason}") from error
    if facts.int8:
        quantise(network.model.layers)
    expected = reference(network, facts.name)
    verify(read_forward(checkpoint, small, kind, rows), expected, kind, small)


def _first_layers(config: Any) -> Any:  # noqa: ANN401
    """The config of the small network, of transformers or a copy of one."""
    small = copy.deepcopy(config)
    small.num_hidden_layers = min(_LAYERS, config.num_hidden_layers)
    # the last panel is as full as the whole vocabulary's
    small.vocab_size = min(config.vocab_size, _TOKENS + config.vocab_size % 16)
    small.pad_token_id = None  # may lie behind the tokens kept
    if getattr(config, "layer_types", None):
        small.layer_types = config.layer_types[: small.num_hidden_layers]
    return small


def _small_network(config: Any, load: Callable[[str], Tensor]) -> Any:  # noqa: ANN401
    """transformers' network in float32 for a config of `_first_layers` over a source's tensors."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the tensors are dequantised
    state = {name: load(name).to(torch.float32) for name in tensor_names(config)}
    network = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
        None, config=config, state_dict=state, attn_implementation="eager", dtype=torch.float32
    )
    return network.eval()
