"""Draft heads on disk: a folder with config.json and model.safetensors, as `speculators` writes it.

`longspec` is a type of our own in that layout; settings that speculators lacks are under "graft".
The layouts of EAGLE's authors (`fc` and `layers.0` or EAGLE-3's `midlayer`, the config of a
one-layer Llama) and of SpecForge (the same with `eagle_config`) are read, too. The target's
embedding and output layer are never written and skipped when read. In 8 bits, a matrix is int8 with
a float32 `weight_scale` for each output channel: half of fp16's size, and Graft's own.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from graft.errors import CheckpointError
from graft.home import atomic_folder
from graft.models.checkpoints.folder import read_header, read_json
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.eagle_head import EagleHead
from graft.models.heads.config import (
    KINDS,
    WINDOW,
    HeadConfig,
    check_target,
    default_features,
    sizes_of,
)
from graft.models.heads.installed import CONFIG
from graft.models.load_record import StoredConfig
from graft.models.longspec_head import LongSpecHead

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Head = EagleHead | LongSpecHead
HEADS: dict[str, type[Head]] = dict.fromkeys(KINDS, EagleHead) | {"longspec": LongSpecHead}
TYPES = {"eagle3": "eagle3", "eagle2": "eagle", "longspec": "longspec"}  # speculators_model_type
ARCHITECTURES = {
    "eagle3": "Eagle3Speculator",
    "eagle2": "EagleSpeculator",
    "longspec": "LongSpecSpeculator",
}
DEPTHS = {"eagle3": 8, "eagle2": 6, "longspec": 5}  # tokens in a chain, as in the papers
WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
CARD = "README.md"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
INT8, SCALE = "int8", "_scale"
SAVED_AS = (*DTYPES, INT8)
OWNED_BY_TARGET = re.compile(
    r"(model\.)?embed_tokens\.weight|verifier_(norm|lm_head)\.weight|(.*\.)?rotary_emb\..*"
)
OUTPUT = re.compile(r"(model\.)?lm_head\.weight")  # EAGLE-3's is its own
RENAMED = (
    (re.compile(r"(?:model\.)?(?:layers\.0|midlayer)\."), "layer."),  # EAGLE's
    (re.compile(r"transformer\."), "layer."),  # speculators'
    (re.compile(r"fusion_fc\."), "fc."),
)
WRITTEN_NAMES = {
    "eagle3": {"layer": "layers.0"},
    "eagle2": {"fc": "fusion_fc", "layer": "transformer"},
    "longspec": {},
}
LAYER_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings",
)  # fmt: skip
EAGLE3 = re.compile(r"(?:model\.)?(?:midlayer|layers\.0\.hidden_norm)\.")


def write_head(
    folder: Path, head: Head, *, dtype: str = "fp16", card: str = "", about: dict | None = None
) -> None:
    """Write a head to `folder`, atomically; `card` becomes its README.md and `about` (how it was
    trained) a part of its config."""
    weights = {}
    for name, value in head.named_parameters():
        weights |= _stored(_speculators_name(name, head.config.kind), value.detach(), dtype)
    weights |= _vocabulary_tables(head.d2t.cpu(), head.config.vocabulary)
    with atomic_folder(folder) as temporary:
        save_file({k: v.contiguous() for k, v in weights.items()}, temporary / WEIGHTS)
        text = json.dumps(_as_json(head.config, dtype, about or {}), indent=2) + "\n"
        (temporary / CONFIG).write_text(text, encoding="utf-8")
        if card:
            (temporary / CARD).write_text(card, encoding="utf-8")


def read_head(
    folder: Path, checkpoint: Checkpoint | None = None, target: "PretrainedConfig | None" = None
) -> Head:
    """The head in a folder, its weights in their stored dtype.

    With a target's checkpoint and config, a head for another target is refused.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; a draft head is one with {CONFIG}")
    content = read_json(folder / CONFIG)
    _refuse_others(content, folder)
    weights = _read_weights(folder)
    kind = _kind(content, weights)
    unused = (OWNED_BY_TARGET,) if kind == "eagle3" else (OWNED_BY_TARGET, OUTPUT)
    for name in [each for each in weights if any(rule.fullmatch(each) for rule in unused)]:
        del weights[name]
    config = _read_config(kind, content, weights, folder)
    if checkpoint is not None and target is not None:
        layers = target.get_text_config().num_hidden_layers
        known = config.feature_layers or default_features(kind, layers)
        config = replace(config, feature_layers=known)
        check_target(config, checkpoint, target, folder)
    return filled(config, weights, folder)


def _kind(content: dict[str, Any], weights: dict[str, Tensor]) -> str:
    """By speculators' type; EAGLE's own files differ by their tensors."""
    written = content.get("speculators_model_type")
    if written is None:
        return "eagle3" if any(EAGLE3.match(name) for name in weights) else "eagle2"
    return next(kind for kind, each in TYPES.items() if each == written)


def _stored(name: str, value: Tensor, dtype: str) -> dict[str, Tensor]:
    """A parameter as its file has it."""
    if dtype != INT8 or value.dim() < 2:
        return {name: value.to("cpu", DTYPES.get(dtype, torch.float16))}
    value = value.float().cpu()
    scale = value.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
    return {name: (value / scale).round().to(torch.int8), name + SCALE: scale}


def _as_json(config: HeadConfig, dtype: str, about: dict[str, Any]) -> dict[str, Any]:
    layer = config.layer_config().to_diff_dict()
    layer |= {"vocab_size": config.vocabulary, "num_hidden_layers": 1, "head_dim": config.head_size}
    proposal = {"proposal_type": "greedy", "speculative_tokens": DEPTHS[config.kind]}
    eagle3 = {
        "norm_before_residual": config.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
    }
    return {
        "architectures": [ARCHITECTURES[config.kind], "LlamaDecoderLayer"],
        "speculators_model_type": TYPES[config.kind],
        "speculators_version": "0.9.0",
        "torch_dtype": str(DTYPES.get(dtype, torch.float16)).removeprefix("torch."),
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "transformer_layer_config": layer,
        "layernorms": False,
        "fusion_bias": config.fusion_bias,
        "draft_vocab_size": config.draft_vocabulary,
        **(eagle3 if config.kind == "eagle3" else {}),
        "speculators_config": {
            "algorithm": TYPES[config.kind],
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "verifier": {"name_or_path": config.target, "architectures": [config.architecture]},
        },
        "graft": {
            "format": 1,
            "fingerprint": config.fingerprint,
            "window": config.window,
            "final_norm": config.final_norm,
            "cross_layers": config.cross_layers,
            **about,
        },
    }


def _speculators_name(name: str, kind: str) -> str:
    head, _, rest = name.partition(".")
    return f"{WRITTEN_NAMES[kind].get(head, head)}.{rest}"


def _vocabulary_tables(ids: Tensor, vocabulary: int) -> dict[str, Tensor]:
    """speculators' tables: `d2t` is id minus index, `t2d` marks the drafted ids."""
    drafted = torch.zeros(vocabulary, dtype=torch.bool)
    drafted[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": drafted}


def _refuse_others(content: dict[str, Any], folder: Path) -> None:
    """Raise CheckpointError for types and variants that would be computed wrongly."""
    kind = content.get("speculators_model_type")
    if kind is not None and kind not in TYPES.values():
        raise CheckpointError(
            f"{folder} is a head of type {kind!r}; known are {', '.join(TYPES.values())}"
        )
    layer = content.get("transformer_layer_config") or content
    size = content.get("target_hidden_size")
    features = (content.get("eagle_config") or {}).get("use_aux_hidden_state", True)
    variants = {
        "extra norms": content.get("layernorms") or content.get("norm_before_fc"),
        "another hidden size than its target": size and size != layer.get("hidden_size"),
        "an embedding of its own": content.get("embed_requires_grad"),
        "features of one layer": not features,
        "parallel drafting": content.get("parallel_drafting"),
    }
    for name, present in variants.items():
        if present:
            raise CheckpointError(f"{folder} is a head with {name}, which is not supported")


def _read_weights(folder: Path) -> dict[str, Tensor]:
    file = folder / WEIGHTS
    try:
        if file.is_file():
            read_header(file)
            found = load_file(file)
        elif (folder / PICKLE).is_file():  # how EAGLE's authors publish theirs; tensors only
            found = torch.load(folder / PICKLE, map_location="cpu", weights_only=True)
        else:
            raise CheckpointError(f"{folder} has no {WEIGHTS}; is it a draft head's folder?")
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{folder} cannot be read: {reason}") from error
    scales = {name: found.pop(name) for name in list(found) if name.endswith("weight" + SCALE)}
    for name, scale in scales.items():
        value = found.get(name.removesuffix(SCALE))
        if value is None or value.dtype != torch.int8 or scale.shape != (len(value), 1):
            raise CheckpointError(f"{folder}: {name} does not scale the rows of an int8 matrix")
        found[name.removesuffix(SCALE)] = (value * scale).half()
    return found


def _feature_layers(kind: str, content: dict[str, Any]) -> tuple[int, ...]:
    """speculators names EAGLE-3's layers by their inputs, SpecForge by their outputs; () where a
    file does not name them."""
    if kind != "eagle3":
        return default_features(kind, 0)
    inputs = content.get("eagle_aux_hidden_state_layer_ids") or ()
    outputs = (content.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids") or ()
    return tuple(inputs) or tuple(each + 1 for each in outputs)


def _read_config(
    kind: str, content: dict[str, Any], weights: dict[str, Tensor], folder: Path
) -> HeadConfig:
    """speculators' config, or that of a one-layer Llama, as in EAGLE's own files."""
    own = content.get("graft") or {}
    verifier = (content.get("speculators_config") or {}).get("verifier") or {}
    try:
        layer = _layer_config(content.get("transformer_layer_config") or content)
        return HeadConfig(
            kind=kind,
            target=verifier.get("name_or_path") or "",
            fingerprint=own.get("fingerprint", ""),
            architecture=next(iter(verifier.get("architectures") or ()), ""),
            vocabulary=layer.vocab_size,
            draft_vocabulary=len(weights["d2t"]) if "d2t" in weights else layer.vocab_size,
            fusion_bias=any(name.endswith("fc.bias") for name in weights),
            window=own.get("window", WINDOW),
            final_norm=own.get("final_norm", False),
            cross_layers=own.get("cross_layers", 1),
            feature_layers=_feature_layers(kind, content),
            own_output=any(OUTPUT.fullmatch(name) for name in weights),
            norm_before_residual=bool(content.get("norm_before_residual")),
            **sizes_of(layer, str(folder))
            | {"attention_bias": any(name.endswith("self_attn.q_proj.bias") for name in weights)},
        )
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{folder / CONFIG} does not describe a head: {reason}") from error


def _layer_config(content: dict[str, Any]) -> Any:  # noqa: ANN401
    """A layer's config; transformers fills in what a file leaves out, ours leave out nothing."""
    whole = all(type(content.get(name)) is int for name in LAYER_SIZES)
    if whole and type(content.get("rms_norm_eps")) is float and "rope_parameters" in content:
        return StoredConfig(**content)
    from huggingface_hub.errors import StrictDataclassError
    from transformers import LlamaConfig

    try:
        return LlamaConfig(**content)
    except StrictDataclassError as error:
        raise ValueError(str(error)) from error


def filled(config: HeadConfig, weights: dict[str, Tensor], folder: Path) -> Head:
    """A head with these weights; CheckpointError where they do not fit its config."""
    with torch.device("meta"):  # no random weights: the file has all of them
        head = HEADS[config.kind](config)
    shape_of = {k: v.shape for k, v in head.state_dict().items()}
    ids = _draft_ids(config, weights, folder)
    given = {_our_name(n): value for n, value in weights.items() if n not in ("d2t", "t2d")}
    given["d2t"] = ids
    missing, unknown = (
        sorted(shape_of.keys() - given.keys()),
        sorted(given.keys() - shape_of.keys()),
    )
    if missing or unknown:
        raise CheckpointError(
            f"{folder} does not fit a head of kind {config.kind}: "
            f"missing {missing[:3]}, unknown {unknown[:3]}"
        )
    for name, shape in shape_of.items():
        if given[name].shape != shape:
            raise CheckpointError(
                f"{folder}: {name} is {list(given[name].shape)}, its {CONFIG} says {list(shape)}"
            )
    head.load_state_dict(given, assign=True)
    return head.eval()


def _our_name(name: str) -> str:
    for pattern, replacement in RENAMED:
        name = pattern.sub(replacement, name, count=1) if pattern.match(name) else name
    return name


def _draft_ids(config: HeadConfig, weights: dict[str, Tensor], folder: Path) -> Tensor:
    """The drafted ids, from speculators' offsets."""
    if "d2t" not in weights:
        return torch.arange(config.vocabulary)
    offsets = weights["d2t"].long()
    ids = offsets + torch.arange(len(offsets))
    if not len(ids) or ids.min() < 0 or ids.max() >= config.vocabulary:
        raise CheckpointError(
            f"{folder}: its d2t names ids outside the vocabulary of {config.vocabulary}"
        )
    if len(ids.unique()) != len(ids):
        raise CheckpointError(f"{folder}: its d2t names an id twice")
    return ids
