"""Engines for callers' models, cached while the model lives and rebuilt when it changes.

The forwards of Llama-shaped models copy weights (on the CPU all of them, packed), and a stale copy
would use old weights. Version counters miss writes through `.data`, so every call computes
checksums of all weights, in about the time of one step. Other models, and those that are split over
several processes, run by their own modules without a copy.
"""

import hashlib
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from graft.assemble.drafters import Drafters, make_drafter
from graft.assemble.heads import machine_clock
from graft.assemble.loading import engine_around
from graft.assemble.resources import DraftResources
from graft.decode.engine import Engine
from graft.errors import UnsupportedModelError
from graft.integrations.hf.split import explain_uneven_heads, shared_costs
from graft.match.pool import Pools
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.forward_hook import HookForward, is_split
from graft.models.gpu import fastest_attention
from graft.models.language_model import Forward, LanguageModel, name_of, prefill_chunk_size
from graft.models.load import LoadedModel, build_forward, longest_context
from graft.models.rope import STATIC_ROPE
from graft.models.step_costs import StepCosts, costs_for

MAX_BATCH = 1 << 12  # transformers has no limit
UNLIMITED = 1 << 40  # positions
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class _Cached:
    """The engine of a model; None if the model's own modules run.

    It must not refer to the model, which would then never be freed.
    """

    structure: tuple
    checksums: tuple[int, ...]
    engine: Engine | None
    costs: StepCosts


@dataclass(slots=True)
class _Kept:
    """What is kept while a model lives; callers that use its modules hold the lock."""

    lock: Any = field(default_factory=threading.RLock)
    cached: _Cached | None = None
    pools: Pools = field(default_factory=Pools)


_kept: weakref.WeakKeyDictionary[PreTrainedModel, _Kept] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _kept_for(model: PreTrainedModel) -> _Kept:
    with _lock:
        return _kept.setdefault(model, _Kept())


def release(model: PreTrainedModel) -> None:
    """Free the cached engine of a model, on the CPU a packed copy of its weights, and its pools."""
    kept = _kept_for(model)
    with kept.lock:
        kept.cached, kept.pools = None, Pools()


def pools_of(model: PreTrainedModel) -> Pools:
    """The pools of answers of a model."""
    return _kept_for(model).pools


def with_pool(engine: Engine, draft: str, pools: Pools) -> str:
    """The name of a drafter that is this preset with the pools, added to the engine."""
    drafters, name = cast(Drafters, engine.drafters), f"{draft} and pool"
    if name not in drafters:
        resources = replace(drafters.resources, pools=pools)
        engine.exclusive(lambda: drafters.update({name: make_drafter(draft, resources)}))
    return name


@contextmanager
def engine_for(model: PreTrainedModel) -> Iterator[Engine]:
    """An engine for the current weights of the model.

    If the model's own modules run, they are in eval mode inside the block, and other calls for the
    same model wait; afterwards every module is as it was.
    """
    with ExitStack() as held:
        kept = _kept_for(model)
        held.enter_context(kept.lock)
        held.enter_context(_evaluating(model))
        current = _up_to_date(model, kept)
        if current.engine is not None:
            held.close()  # it has its own weights and is thread-safe
            yield current.engine
        else:
            attention = fastest_attention(model.device)
            forward = cast(Forward, HookForward(model, attention))
            yield _engine(model, forward, "hook", current.costs)


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Clear and restore the flag of every module: `eval()` does more in some of them."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def _up_to_date(model: PreTrainedModel, kept: _Kept) -> _Cached:
    last, structure = kept.cached, _structure(model)
    if (
        last
        and last.structure == structure
        and (last.engine is None or last.checksums == _checksums(model))
    ):
        return last
    kept.cached = last = None  # never hold two packed copies
    kept.cached = _prepare(model, structure)
    return kept.cached


def _prepare(model: PreTrainedModel, structure: tuple) -> _Cached:
    name = _name(model)
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise UnsupportedModelError(
            f"{name} cannot be used: its weights are on {', '.join(devices)}; "
            "load it onto one device"
        )
    with explain_uneven_heads(model):
        forward, kind = build_forward(model, name=name, kind="hook" if is_split(model) else None)
    packed = _engine(model, forward, kind, costs=None)
    if kind == "hook":
        return _Cached(structure, (), None, packed.loop.costs)
    return _Cached(structure, _checksums(model), packed, packed.loop.costs)


def _engine(model: PreTrainedModel, forward: Forward, kind: str, costs: StepCosts | None) -> Engine:
    target = LanguageModel(
        forward,
        vocabulary=model.get_output_embeddings().weight.shape[0],
        context_length=_positions(model.config),
        chunk=prefill_chunk_size(model.device),
    )
    target.prefixes.use(max_rows=0)  # a batch shares prefixes; nothing is cached after it
    kinds = sorted({type(parameter).__name__ for parameter in model.parameters()})
    settings = f"{type(model).__name__} {kinds} {model.config.to_dict()}"
    fingerprint = hashlib.sha256(settings.encode()).hexdigest()
    checkpoint = Checkpoint(_name(model), Path(model.config.name_or_path), fingerprint)
    dtype, device = name_of(model.dtype), str(model.device)
    resources = DraftResources(clock=None if costs or is_split(model) else machine_clock())
    if costs is None and is_split(model):
        costs = shared_costs(model, target)
    costs = costs or costs_for(target, fingerprint, dtype, device)
    loaded = LoadedModel(target, None, checkpoint, frozenset(), dtype, device, kind)
    return engine_around(loaded, costs, resources=resources, max_batch=MAX_BATCH)


def _name(model: PreTrainedModel) -> str:
    return model.config.name_or_path or type(model).__name__


def _positions(config: PretrainedConfig) -> int:
    """The maximum length: as in transformers, unlimited if the rotary embedding allows it."""
    rotary = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = {
        each.get("rope_type")
        for each in (rotary, *rotary.values())
        if isinstance(each, dict) and "rope_type" in each
    }
    return UNLIMITED if kinds and kinds <= STATIC_ROPE else longest_context(config)


def _structure(model: PreTrainedModel) -> tuple:
    """Everything but the values: config, modules, hooks and addresses of tensors."""
    modules = tuple(
        (type(m), len(m._forward_hooks), len(m._forward_pre_hooks), "forward" in vars(m))
        for m in model.modules()
    )
    tensors = tuple((t.data_ptr(), t.shape, t.dtype, t.device) for t in _tensors(model))
    return repr(model.config.to_dict()), modules, tensors


def _checksums(model: PreTrainedModel) -> tuple[int, ...]:
    totals = [_checksum(tensor).to(model.device) for tensor in _tensors(model)]
    return tuple(torch.stack(totals).tolist())


def _tensors(model: PreTrainedModel) -> Iterator[Tensor]:
    for tensor in (*model.parameters(), *model.buffers()):
        yield from _parts(tensor)


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors inside a quantised or distributed tensor, or the tensor itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for part in (getattr(tensor, name) for name in names):
        if isinstance(part, Tensor):
            yield from _parts(part)


def _checksum(tensor: Tensor) -> Tensor:
    """Sum of a tensor's bits, each row weighted by its own odd number."""
    rows = tensor.detach().contiguous()
    rows = rows.reshape(len(rows), -1) if rows.ndim and len(rows) else rows.reshape(1, -1)
    size, width = rows.element_size(), rows.shape[1] * rows.element_size()
    wide = width % 8 == 0 and rows.storage_offset() * size % 8 == 0
    totals = rows.view(torch.int64 if wide else _INTEGERS[size]).sum(1, dtype=torch.int64)
    return (totals * torch.arange(1, 2 * len(totals), 2, device=totals.device)).sum()
