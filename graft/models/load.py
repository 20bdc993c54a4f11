"""From a name to a model that is ready to score trees, verified against transformers' forward."""

import logging
from dataclasses import dataclass
from typing import Any, cast

import torch

from graft import machine
from graft.errors import CheckpointError, InputError, UnsupportedModelError
from graft.models.checkpoints.folder import read_json
from graft.models.checkpoints.pretrained import Checkpoint, locate
from graft.models.checkpoints.tokenizer import from_transformers, transformers_tokenizer
from graft.models.cpu_choice import choose_dtype
from graft.models.forward_choice import (
    Facts,
    build_forward,
    fastest_kind,
    reference,
    verify,
)
from graft.models.forward_panels import PanelForward
from graft.models.int8 import quantisation, stored_quantisation
from graft.models.language_model import (
    Forward,
    LanguageModel,
    dtype_of,
    name_of,
    prefill_chunk_size,
)
from graft.models.llama_checkpoint import choose_weights, read_forward, verify_first_layers
from graft.models.llama_files import can_read
from graft.models.llama_shape import is_llama_shaped
from graft.models.load_record import (
    LoadRecord,
    is_verified,
    read_record,
    read_stored_config,
    record_of,
    set_verified,
    write_record,
)
from graft.models.quantised_files import layout_of
from graft.models.rope import check_context_length, stretch

log = logging.getLogger(__name__)

DTYPES = ("auto", "fp32", "bf16", "fp16", "int8", "gguf")
READ_AS = {"mimo": "qwen2"}  # types of models whose layers transformers has under another name
UNBOUNDED = 1 << 20  # tokens of a model without positions
KV_CACHE_DTYPES = ("auto", "fp32", "bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with everything that belongs to its checkpoint."""

    model: LanguageModel
    tokenizer: Any  # checkpoints.tokenizer.Tokenizer, one of transformers', or None: ids only
    checkpoint: Checkpoint
    eos_ids: frozenset[int]
    dtype: str
    device: str
    forward_name: str
    stretched: int | None = None  # tokens that its context was stretched to, if it was
    kv_cache_dtype: str = "auto"  # the forward's own

    @property
    def is_exact(self) -> bool:
        """Whether a node's logits follow from its own path alone, bit for bit."""
        return self.model.forward.exact

    @property
    def identity(self) -> str:
        """The weights, their rope and the cache: what keys, values and times depend on."""
        turned = "" if self.stretched is None else f" yarn {self.stretched}"
        stored = "" if self.kv_cache_dtype == "auto" else f" kv {self.kv_cache_dtype}"
        return f"{self.checkpoint.fingerprint}{turned}{stored}"


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    context_length: int | None = None,
    invariant: bool = False,
    kv_cache_dtype: str = "auto",
) -> LoadedModel:
    """Fetch (if need be), read, verify and prepare a checkpoint.

    `context_length`: tokens; None is the model's own, more stretches it by YaRN.
    `kv_cache_dtype`: "auto" is the weights' on a GPU, fp32 on the CPU.
    `invariant`: a node's logits have the same bits whatever else is in the step, in any dtype.

    The first load of a checkpoint verifies it against transformers. Later loads of a Llama-shaped
    one do not import transformers (`load_record.py`).
    """
    if dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    check_context_length(context_length)
    where = find_device(device)
    kv_dtype = _kv_dtype(kv_cache_dtype, where)
    checkpoint, dtype = choose_weights(locate(name), dtype, where)
    record = _read_record(checkpoint)
    config = record.config
    own = longest_context(config)
    stretched = context_length if context_length is not None and context_length > own else None
    if stretched:
        stretch(config, stretched, name)
    dtype, base = _dtypes(name, dtype, config, where)
    packed = checkpoint.gguf is not None
    int8 = dtype == "int8" and where.type == "cpu"
    given = {"int8": int8, "packed": packed, "invariant": invariant}
    facts = Facts(name, config, dtype_of(base), where, **given, kv_dtype=kv_dtype)
    built, vocabulary = None, config.get_text_config().vocab_size
    if packed or ((int8 or dtype != "int8") and can_read(checkpoint.folder, config)):
        built = _from_files(checkpoint, facts, stretched)
    if built is None:
        network = read_network(checkpoint, stretched, dtype, facts.dtype, where)
        vocabulary = network.get_output_embeddings().weight.shape[0]
        kind = "panels" if kv_dtype and is_llama_shaped(network) else None
        built = build_forward(network, name=name, dtype=facts.dtype, kind=kind, invariant=invariant)
    forward, forward_name = built
    if kv_dtype:  # changed after the probe, whose tolerance is that of the weights
        if forward_name != "panels":
            raise InputError(f"{name} is not Llama-shaped; use --kv-cache-dtype auto")
        cast(PanelForward, forward).store_kv(kv_dtype)
    return LoadedModel(
        model=LanguageModel(
            forward,
            vocabulary=vocabulary,
            context_length=context_length or own,
            chunk=prefill_chunk_size(where),
        ),
        tokenizer=record.tokenizer,
        checkpoint=checkpoint,
        eos_ids=_eos_ids(checkpoint, config, record.tokenizer),
        dtype=dtype,
        device=str(where),
        forward_name=forward_name,
        stretched=stretched,
        kv_cache_dtype=kv_cache_dtype,
    )


def _kv_dtype(name: str, where: torch.device) -> torch.dtype | None:
    if name not in KV_CACHE_DTYPES:
        choices = ", ".join(KV_CACHE_DTYPES)
        raise InputError(f"unknown KV cache dtype {name!r}; choose one of {choices}")
    if name == "auto":
        return None
    if where.type != "cpu":
        raise InputError(f"a KV cache in {name} needs the CPU; use --kv-cache-dtype auto")
    return dtype_of(name)


def _read_record(checkpoint: Checkpoint) -> LoadRecord:
    """Config and tokenizer; by transformers where they are not known yet."""
    if record := read_record(checkpoint):
        return record
    config = _transformers_config(checkpoint)
    theirs = transformers_tokenizer(checkpoint)
    ours = from_transformers(theirs)
    if ours is None or not (checkpoint.gguf or can_read(checkpoint.folder, config)):
        return LoadRecord(config, ours or theirs)
    record = record_of(config, ours)
    write_record(checkpoint, record)
    return record


def _from_files(
    checkpoint: Checkpoint, facts: Facts, stretched: int | None
) -> tuple[Forward, str] | None:
    """A forward over the files' own weights; None where it disagrees with transformers."""
    kind = fastest_kind(facts)
    where = torch.cuda.get_device_name(facts.device) if facts.device.type == "cuda" else "cpu"
    stored = "gguf" if facts.packed else "int8" * facts.int8 + name_of(facts.dtype)
    about = (kind, stored, where, f"{stretched}", f"invariant {facts.invariant}")
    verified = is_verified(checkpoint, *about)
    by_layers = facts.device.type == "cpu" or layout_of(facts.config) is not None
    if not verified and by_layers:
        try:
            config = _transformers_config(checkpoint, stretched)
            verify_first_layers(checkpoint, facts, kind, config)
        except UnsupportedModelError:
            if facts.packed or layout_of(facts.config):
                raise
            return None
        set_verified(checkpoint, *about)
    if verified or by_layers:
        return read_forward(checkpoint, facts, kind), kind
    expected = reference(
        read_network(checkpoint, stretched, name_of(facts.dtype), facts.dtype, facts.device),
        facts.name,
    )
    torch.cuda.empty_cache()  # the network is not needed any more
    forward = read_forward(checkpoint, facts, kind)
    try:
        verify(forward, expected, kind, facts)
    except UnsupportedModelError:
        return None
    set_verified(checkpoint, *about)
    return forward, kind


def read_config(checkpoint: Checkpoint, stretched: int | None = None) -> "Any":  # noqa: ANN401
    """A checkpoint's config with transformers' names, its context stretched to so many tokens."""
    config = read_stored_config(checkpoint)
    if config is None:
        return _transformers_config(checkpoint, stretched)
    if stretched is not None:
        stretch(config, stretched, checkpoint.name)
    return config


def _transformers_config(checkpoint: Checkpoint, stretched: int | None = None) -> "Any":  # noqa: ANN401
    import transformers

    transformers.utils.logging.disable_progress_bar()
    content = read_json(checkpoint.folder / "config.json")
    try:
        if own := READ_AS.get(content.get("model_type")):
            content = {n: v for n, v in content.items() if n not in ("model_type", "auto_map")}
            config = transformers.AutoConfig.for_model(own, **content)
        else:
            config = transformers.AutoConfig.from_pretrained(checkpoint.folder)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{checkpoint.name}: {reason}") from error
    if stretched is not None:
        stretch(config, stretched, checkpoint.name)
    return config


def _dtypes(
    name: str,
    dtype: str,
    config: "Any",  # noqa: ANN401
    where: torch.device,
) -> tuple[str, str]:
    """The dtype asked for, with "auto" decided, and that of all that int8 leaves as it is."""
    stored = stored_quantisation(config)
    if stored == "int8" and dtype not in ("auto", "int8"):
        raise InputError(f"{name} holds int8 weights; use --dtype int8 or auto, not {dtype}")
    if stored not in (None, "int8") and dtype == "int8":
        raise InputError(f"{name} is quantised already ({stored}); it cannot become int8")
    if dtype == "gguf":
        return dtype, "bf16"
    if dtype in ("auto", "int8"):
        own = str(getattr(config, "dtype", None)).removeprefix("torch.")
        halves = own == "float16" and layout_of(config)  # scales of 16 bits stay as they are
        on_gpu = "fp16" if halves else "bf16"
        base = choose_dtype(config) if where.type == "cpu" else on_gpu
        return ("int8" if "int8" in (dtype, stored) else base), base
    return dtype, dtype


def longest_context(config: "Any") -> int:  # noqa: ANN401
    """Positions a model can be used at; no further than its rotation stays the same. Purely
    recurrent models have no limit.

    "dynamic" and "longrope" turn all keys anew once the text is longer than it was trained for.
    """
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None) or UNBOUNDED
    rotary = getattr(text, "rope_parameters", None) or {}
    if rotary.get("rope_type") in ("dynamic", "longrope"):
        return min(longest, rotary.get("original_max_position_embeddings") or longest)
    return longest


def memory(device: str) -> int:
    """Bytes of memory the device has, or some where the system does not say."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_properties(device).total_memory
    return machine.memory().total or 8 << 30


def find_device(device: str) -> torch.device:
    """The device of that name, "auto" decided; InputError where it cannot be used."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"unknown device {device!r}; try cpu or cuda") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is usable here; use --device cpu")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise InputError(f"there is no {device}; {torch.cuda.device_count()} CUDA device(s) found")
    if where.type not in ("cpu", "cuda"):
        raise InputError(f"device {device!r} is not supported; use cpu or cuda")
    return where


def read_network(
    checkpoint: Checkpoint,
    stretched: int | None,
    dtype: str,
    base: torch.dtype,
    device: torch.device,
) -> "Any":  # noqa: ANN401
    """transformers' network, its layers quantised if `dtype` is int8.

    On the CPU in fp32, for the reference: 16-bit products can take minutes there. int8 is always
    read in fp32: torchao finds other codes for weights that were rounded before.
    """

    config = _transformers_config(checkpoint, stretched)
    options = {"quantization_config": quantisation()} if dtype == "int8" else {}
    if stored_quantisation(config):
        options = {}  # the checkpoint knows how
    try:
        network, report = _auto_class(config).from_pretrained(
            checkpoint.folder,
            config=config,
            dtype=torch.float32 if dtype == "int8" or device.type == "cpu" else base,
            attn_implementation="eager",
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{checkpoint.name} cannot be read: {reason}") from error
    absent = sorted(report["missing_keys"])  # transformers would fill them with random numbers
    if absent:
        raise CheckpointError(
            f"{checkpoint.name} cannot be read: {len(absent)} weights are missing, "
            f"{absent[0]} first; its config does not fit its weights"
        )
    return network.eval().to(device)


def _auto_class(config: "Any") -> "Any":  # noqa: ANN401
    """transformers' class for a config: a language model, or one that also takes images, of which
    the text decoder is used."""
    import transformers

    with_images = type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or not with_images:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModelForImageTextToText


def _eos_ids(checkpoint: Checkpoint, config: "Any", tokenizer: "Any") -> frozenset[int]:  # noqa: ANN401
    """All end tokens that generation_config.json, config and tokenizer name."""
    settings = checkpoint.folder / "generation_config.json"
    return end_tokens(
        read_json(settings).get("eos_token_id") if settings.is_file() else None,
        getattr(config, "eos_token_id", None),
        tokenizer.eos_token_id,
    )


def end_tokens(*named: int | list[int] | None) -> frozenset[int]:
    """The ids of end tokens, each given as one, as several or as None."""
    ids: set[int] = set()
    for value in named:
        if value is not None:
            ids.update([value] if isinstance(value, int) else value)
    return frozenset(ids)
