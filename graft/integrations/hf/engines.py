"""Engines around callers' models, kept while the model lives and made anew when it changed.

The forwards for Llama-shaped models copy weights (on the CPU all of them, packed), and a stale copy
would answer for weights that are gone. Counters of changes miss what is written through `.data`,
so every call reads all weights once and compares sums: about the time of one step. Other models,
and those that are split over several processes, are run by their own modules and need nothing of
this.
"""

import hashlib
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from graft.assemble import DraftResources, engine_around, machine_clock
from graft.decode.engine import Engine
from graft.errors import UnsupportedModelError
from graft.integrations.hf.split import heads_blamed, shared_costs
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.forward_hook import HookForward, is_split
from graft.models.gpu import fastest_attention
from graft.models.language_model import CHUNKS, Forward, LanguageModel, name_of
from graft.models.load import LoadedModel, build_forward, longest_context
from graft.models.rope import STATIC_ROPE
from graft.models.step_costs import StepCosts, costs_for

MOST_ROWS = 1 << 12  # of a batch; transformers has no limit
UNLIMITED = 1 << 40  # positions
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is known of a model; `engine` is None where the model's own modules run.

    Nothing in here may hold the model itself, or it would never be freed.
    """

    look: tuple
    sums: tuple[int, ...]
    engine: Engine | None
    costs: StepCosts


_kept: weakref.WeakKeyDictionary[PreTrainedModel, _Kept] = weakref.WeakKeyDictionary()
_locks: weakref.WeakKeyDictionary[PreTrainedModel, Any] = weakref.WeakKeyDictionary()
_door = threading.Lock()


def release(model: PreTrainedModel) -> None:
    """Forget what is kept for a model: on the CPU a packed copy of its weights."""
    with _lock_of(model), _door:
        _kept.pop(model, None)


@contextmanager
def engine_for(model: PreTrainedModel) -> Iterator[Engine]:
    """An engine that computes the model as it is now.

    Where the model's own modules run they are in eval mode inside the block, and other calls for
    the same model wait; afterwards every module is as it was.
    """
    with ExitStack() as held:
        held.enter_context(_lock_of(model))
        held.enter_context(_evaluating(model))
        kept = _up_to_date(model)
        if kept.engine is not None:
            held.close()  # it has its own weights and takes requests from any thread
            yield kept.engine
        else:
            attention = fastest_attention(model.device)
            yield _engine(model, HookForward(model, attention), "hook", kept.costs)


def _lock_of(model: PreTrainedModel) -> Any:  # noqa: ANN401
    with _door:
        if model not in _locks:
            _locks[model] = threading.RLock()
        return _locks[model]


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Every module's own flag is set and put back: `eval()` may do more in some of them."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def _up_to_date(model: PreTrainedModel) -> _Kept:
    with _door:
        kept = _kept.get(model)
    look = _look(model)
    if kept and kept.look == look and (kept.engine is None or kept.sums == _sums(model)):
        return kept
    with _door:
        _kept.pop(model, None)  # so that two packed copies are never there at once
    del kept
    fresh = _prepare(model, look)
    with _door:
        _kept[model] = fresh
    return fresh


def _prepare(model: PreTrainedModel, look: tuple) -> _Kept:
    name = _name(model)
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise UnsupportedModelError(
            f"{name} cannot be used: its weights lie on {', '.join(devices)}; "
            "load it onto one device"
        )
    with heads_blamed(model):
        forward, kind = build_forward(model, name=name, kind="hook" if is_split(model) else None)
    packed = _engine(model, forward, kind, costs=None)
    if kind == "hook":
        return _Kept(look, (), None, packed.loop.costs)
    return _Kept(look, _sums(model), packed, packed.loop.costs)


def _engine(model: PreTrainedModel, forward: Forward, kind: str, costs: StepCosts | None) -> Engine:
    target = LanguageModel(
        forward,
        vocabulary=model.get_output_embeddings().weight.shape[0],
        context_length=_positions(model.config),
        chunk=CHUNKS.get(model.device.type, CHUNKS["cpu"]),
    )
    target.prefixes.use(max_rows=0)  # rows of a batch share beginnings; nothing is kept after it
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
    return engine_around(loaded, costs, resources=resources, max_batch=MOST_ROWS)


def _name(model: PreTrainedModel) -> str:
    return model.config.name_or_path or type(model).__name__


def _positions(config: PretrainedConfig) -> int:
    """How far a text may grow: as in transformers, without end where the rotation allows it."""
    rotary = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = {
        each.get("rope_type")
        for each in (rotary, *rotary.values())
        if isinstance(each, dict) and "rope_type" in each
    }
    return UNLIMITED if kinds and kinds <= STATIC_ROPE else longest_context(config)


def _look(model: PreTrainedModel) -> tuple:
    """Everything but the numbers: config, modules and where their tensors lie."""
    modules = tuple(
        (type(m), len(m._forward_hooks), len(m._forward_pre_hooks), "forward" in vars(m))
        for m in model.modules()
    )
    tensors = tuple((t.data_ptr(), t.shape, t.dtype, t.device) for t in _tensors(model))
    return repr(model.config.to_dict()), modules, tensors


def _sums(model: PreTrainedModel) -> tuple[int, ...]:
    totals = [_sum(tensor).to(model.device) for tensor in _tensors(model)]
    return tuple(torch.stack(totals).tolist())


def _tensors(model: PreTrainedModel) -> Iterator[Tensor]:
    for tensor in (*model.parameters(), *model.buffers()):
        yield from _parts(tensor)


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors that a quantised one is made of, or this process has of one; or itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for part in (getattr(tensor, name) for name in names):
        if isinstance(part, Tensor):
            yield from _parts(part)


def _sum(tensor: Tensor) -> Tensor:
    """A tensor's bits added up, row by row, each row times its own odd number."""
    rows = tensor.detach().contiguous()
    rows = rows.reshape(len(rows), -1) if rows.ndim and len(rows) else rows.reshape(1, -1)
    size, width = rows.element_size(), rows.shape[1] * rows.element_size()
    wide = width % 8 == 0 and rows.storage_offset() * size % 8 == 0
    totals = rows.view(torch.int64 if wide else _INTEGERS[size]).sum(1, dtype=torch.int64)
    return (totals * torch.arange(1, 2 * len(totals), 2, device=totals.device)).sum()
