"""From a name to a model that is ready to score trees, checked against its own forward."""

import logging
from dataclasses import dataclass
from typing import Any

import torch

from graft import machine
from graft.errors import CheckpointError, InputError, UnsupportedModelError
from graft.kernels.tree_attention_invariant import tree_attention as invariant_attention
from graft.machine import has_triton
from graft.models.checkpoints.pretrained import Checkpoint, locate
from graft.models.cpu_choice import choose_dtype, panels_are_faster
from graft.models.forward import LeanForward
from graft.models.forward_hook import HookForward
from graft.models.forward_panels import PanelForward
from graft.models.gpu import fastest_attention, graphed_forward
from graft.models.int8 import quantisation, stored_quantisation
from graft.models.invariant import InvariantForward, check_invariant, refuse_experts
from graft.models.language_model import CHUNKS, Forward, LanguageModel, dtype_of
from graft.models.llama_shape import has_int8_products, is_llama_shaped, read_llama
from graft.models.probe import TOLERANCE, Reference, check, reference_of
from graft.models.stretch import check_context_length, stretch

log = logging.getLogger(__name__)

DTYPES = ("auto", "fp32", "bf16", "fp16", "int8")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with everything that belongs to its checkpoint."""

    model: LanguageModel
    tokenizer: Any  # a transformers fast tokenizer, or None: token ids only
    checkpoint: Checkpoint
    eos_ids: frozenset[int]
    dtype: str
    device: str
    forward_name: str
    stretched: int | None = None  # tokens that its positions were stretched to, if they were

    @property
    def identity(self) -> str:
        """The weights and how positions turn: what keys, values and times depend on."""
        turned = "" if self.stretched is None else f" yarn {self.stretched}"
        return f"{self.checkpoint.fingerprint}{turned}"


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    context_length: int | None = None,
    invariant: bool = False,
) -> LoadedModel:
    """Fetch (if need be), read, check and prepare a checkpoint.

    `context_length`: of how many tokens; None is the model's own, more stretches it by YaRN.
    `invariant`: a node's logits have the same bits whatever else is in the step, in any dtype.
    """
    if dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    check_context_length(context_length)
    where = find_device(device)
    checkpoint = locate(name)
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config = read_config(checkpoint)
    own = longest_context(config)
    stretched = context_length if context_length is not None and context_length > own else None
    if stretched:
        stretch(config, stretched, name)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.folder)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{name}: {str(error).splitlines()[0][:200]}") from error
    dtype, base = _dtypes(name, dtype, config, where)
    network = _read(checkpoint, config, dtype, dtype_of(base), where)
    forward, forward_name = build_forward(
        network, name=name, dtype=dtype_of(base), invariant=invariant
    )
    return LoadedModel(
        model=LanguageModel(
            forward,
            vocabulary=network.get_output_embeddings().weight.shape[0],
            context_length=context_length or own,
            chunk=CHUNKS[where.type],
        ),
        tokenizer=tokenizer,
        checkpoint=checkpoint,
        eos_ids=_eos_ids(network, tokenizer),
        dtype=dtype,
        device=str(where),
        forward_name=forward_name,
        stretched=stretched,
    )


def read_config(checkpoint: Checkpoint, stretched: int | None = None) -> "Any":  # noqa: ANN401
    """transformers' config of a checkpoint, its context stretched to so many tokens."""
    import transformers

    try:
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
    if dtype in ("auto", "int8"):
        base = choose_dtype(config) if where.type == "cpu" else "bf16"
        return ("int8" if "int8" in (dtype, stored) else base), base
    return dtype, dtype


def build_forward(
    network: "Any",  # noqa: ANN401
    *,
    name: str,
    dtype: torch.dtype | None = None,
    kind: str | None = None,
    invariant: bool = False,
) -> tuple[Forward, str]:
    """The fastest forward that computes `network` (cast to `dtype`) exactly, and its name.

    Weights that torchao quantised stay int8; the reference is then the quantised network.
    `kind` insists on one of "panels", "graphed", "lean", "hook". Panels are always invariant, the
    last two are made so if asked. Without a `dtype` the network is left as it is.
    """
    if (dtype or network.dtype) not in TOLERANCE:
        raise UnsupportedModelError(f"{name} cannot be used in {network.dtype}; use 32 or 16 bits")
    if invariant:
        refuse_experts(network.config, name)
    try:
        expected = reference_of(network)
    except (AttributeError, IndexError, TypeError, RuntimeError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise UnsupportedModelError(f"{name}: its own forward fails: {reason}") from error
    if dtype is not None:
        network = network.to(dtype)
    owned = dtype is not None
    kind = kind or _fastest_kind(network, name, invariant=invariant)
    return _build(network, expected, kind, name, invariant=invariant, owned=owned)


def _build(  # noqa: PLR0913
    network: "Any",  # noqa: ANN401
    expected: Reference,
    kind: str,
    name: str,
    *,
    invariant: bool,
    owned: bool,
) -> tuple[Forward, str]:
    forward = _make(network, kind, name, invariant=invariant, owned=owned)
    try:
        check(forward, expected, name=name, dtype=network.dtype)
        if invariant and kind != "panels":
            check_invariant(forward, vocabulary=expected.vocabulary, name=name)
    except UnsupportedModelError:
        if kind == "hook":
            raise
        log.warning("%s: the %s forward does not agree; using transformers' modules", name, kind)
        return _build(network, expected, "hook", name, invariant=invariant, owned=owned)
    return forward, kind


def _make(
    network: "Any",  # noqa: ANN401
    kind: str,
    name: str,
    *,
    invariant: bool,
    owned: bool,
) -> Forward:
    if kind == "panels":
        return PanelForward(*read_llama(network))
    if kind == "graphed":
        return graphed_forward(*read_llama(network, in_place=owned))
    attention = invariant_attention if invariant else fastest_attention(network.device)
    try:
        forward: Forward = (
            LeanForward(*read_llama(network, in_place=owned), attention)
            if kind == "lean"
            else HookForward(network, attention)
        )
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{name} cannot be used: {error}") from error
    return InvariantForward(forward, device=network.device) if invariant else forward


def _fastest_kind(network: "Any", name: str, *, invariant: bool) -> str:  # noqa: ANN401
    if network.device.type == "cpu":
        if not is_llama_shaped(network):
            return "hook"
        panels = invariant or has_int8_products(network)
        return "panels" if panels or panels_are_faster(network.config, network.dtype) else "lean"
    reason = _why_not_graphed(network, invariant=invariant)
    if reason is None:
        return "graphed"
    log.warning("%s: steps are launched kernel by kernel, without CUDA graphs: %s", name, reason)
    return "lean" if is_llama_shaped(network) and not has_int8_products(network) else "hook"


def _why_not_graphed(network: "Any", *, invariant: bool) -> str | None:  # noqa: ANN401
    """What keeps a network on a GPU from running by CUDA graphs; None if nothing does."""
    if not is_llama_shaped(network):
        return "only Llama-shaped decoders can be captured"
    if has_int8_products(network):
        return "int8 weights are multiplied by torchao"
    if invariant:
        return "invariant mode computes in slabs"
    return None if has_triton() else "Triton is not installed"


def longest_context(config: "Any") -> int:  # noqa: ANN401
    """Positions a model can be used at; no further than its rotation stays the same.

    "dynamic" and "longrope" turn all keys anew once the text is longer than it was trained for.
    """
    text = config.get_text_config()
    longest = text.max_position_embeddings
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


def _read(
    checkpoint: Checkpoint,
    config: "Any",  # noqa: ANN401
    dtype: str,
    base: torch.dtype,
    device: torch.device,
) -> "Any":  # noqa: ANN401
    """The network, its layers quantised if `dtype` is int8.

    On the CPU in fp32, for the reference: 16-bit products can take minutes there. int8 is always
    read in fp32: torchao finds other codes for weights that were rounded before.
    """
    import transformers

    options = {"quantization_config": quantisation()} if dtype == "int8" else {}
    if stored_quantisation(config):
        options = {}  # the checkpoint knows how
    try:
        network, report = transformers.AutoModelForCausalLM.from_pretrained(
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


def _eos_ids(network: "Any", tokenizer: "Any") -> frozenset[int]:  # noqa: ANN401
    generation = network.generation_config
    return end_tokens(
        generation.eos_token_id if generation else None,
        getattr(network.config, "eos_token_id", None),
        tokenizer.eos_token_id,
    )


def end_tokens(*named: int | list[int] | None) -> frozenset[int]:
    """All end tokens that generation config, config and tokenizer name, each in its way."""
    ids: set[int] = set()
    for value in named:
        if value is not None:
            ids.update([value] if isinstance(value, int) else value)
    return frozenset(ids)
