"""The fastest forward that computes a network exactly."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from graft.errors import UnsupportedModelError
from graft.kernels.tree_attention_invariant import tree_attention as invariant_attention
from graft.machine import has_triton
from graft.models.cpu_choice import panels_are_faster
from graft.models.forward import LeanForward
from graft.models.forward_panels import PanelForward
from graft.models.gpu import captured_forward, fastest_attention, graphed_forward
from graft.models.invariant import InvariantForward, check_invariant, refuse_experts
from graft.models.language_model import Forward
from graft.models.llama_shape import (
    LlamaShape,
    LlamaWeights,
    has_int8_products,
    is_llama_shaped,
    read_llama,
)
from graft.models.panel_weights import pack_weights
from graft.models.probe import TOLERANCE, Reference, check, reference_of

log = logging.getLogger(__name__)

MISFITS = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)  # of a model's own code
NOT_CAPTURED = "%s: steps are launched kernel by kernel, without CUDA graphs: %s"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the choice of a forward depends on."""

    name: str
    config: Any  # transformers', or a copy of one
    dtype: torch.dtype
    device: torch.device
    llama_shaped: bool = True
    int8: bool = False  # whether the layers' products are
    packed: bool = False  # whether they stay in GGUF's blocks
    kv_dtype: torch.dtype | None = None  # of the KV cache; None: the forward's own
    invariant: bool = False
    owned: bool = False  # whether its modules may be changed


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
    `kind` insists on one of "panels", "graphed", "captured", "lean", "hook", "hook-panels". Panels
    are invariant, graphs of Llama-shaped models in 16 bits; "lean" and both hooks are made so if
    `invariant`. Without a `dtype` the network is left as it is.
    """
    if (dtype or network.dtype) not in TOLERANCE:
        raise UnsupportedModelError(f"{name} cannot be used in {network.dtype}; use 32 or 16 bits")
    expected = reference(network, name)
    facts = facts_of(network, name, dtype, invariant=invariant)
    kind = kind or fastest_kind(facts)
    if facts.owned and kind != "hook-panels":  # which rounds weights as it packs them
        network = network.to(dtype)
    try:
        return _verified(network, expected, kind, facts), kind
    except UnsupportedModelError:
        if kind == "hook":
            raise
    return _verified(network.to(facts.dtype), expected, "hook", facts), "hook"


def reference(network: "Any", name: str) -> Reference:  # noqa: ANN401
    """What the network itself computes for the probe; UnsupportedModelError where it fails."""
    try:
        return reference_of(network)
    except MISFITS as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise UnsupportedModelError(f"{name}: its own forward fails: {reason}") from error


def facts_of(
    network: "Any",  # noqa: ANN401
    name: str,
    dtype: torch.dtype | None = None,
    *,
    invariant: bool = False,
) -> Facts:
    """Those of a network of transformers; one that is cast to a `dtype` is owned."""
    shaped = is_llama_shaped(network)
    return Facts(
        name,
        network.config,
        dtype or network.dtype,
        network.device,
        llama_shaped=shaped,
        int8=shaped and has_int8_products(network),
        invariant=invariant,
        owned=dtype is not None,
    )


def _verified(network: "Any", expected: Reference, kind: str, facts: Facts) -> Forward:  # noqa: ANN401
    if kind == "hook-panels":
        return _panelled(network, expected, facts)
    if kind == "hook":
        forward = _hook_forward(network, facts)
    elif kind == "captured":
        forward = _captured_forward(network, facts)
    else:
        llama = read_llama(network, in_place=facts.owned and kind != "panels")
        forward = make_llama(kind, *llama, facts)
    verify(forward, expected, kind, facts)
    if kind == "captured":
        _set_exact(forward, expected, facts)
    return forward


def verify(forward: Forward, expected: Reference, kind: str, facts: Facts) -> None:
    """UnsupportedModelError unless a forward agrees with the network's own; it is logged where
    transformers' modules can run instead."""
    try:
        check(forward, expected, name=facts.name, dtype=facts.dtype)
        if facts.invariant and kind != "panels":
            check_invariant(forward, vocabulary=expected.vocabulary, name=facts.name)
    except UnsupportedModelError as error:
        if kind != "hook":
            text = "%s: the %s forward is not used, transformers' modules are: %s"
            log.warning(text, facts.name, kind, error)
        raise


def make_llama(kind: str, shape: LlamaShape, weights: LlamaWeights, facts: Facts) -> Forward:
    """A forward of kind "panels", "graphed" or "lean"."""
    if kind == "panels":
        return PanelForward(shape, pack_weights(weights, facts.dtype))
    weights = weights.in_memory()
    if kind == "graphed":
        return graphed_forward(shape, weights)
    return _maybe_invariant(LeanForward(shape, weights, _attention(facts)), facts)


def _hook_forward(
    network: "Any",  # noqa: ANN401
    facts: Facts,
    build: Callable[..., Forward] | None = None,
) -> Forward:
    from graft.models.forward_hook import HookForward  # imports transformers

    if facts.invariant:
        refuse_experts(network.config, facts.name)
    try:
        return _maybe_invariant((build or HookForward)(network, _attention(facts)), facts)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{facts.name} cannot be used: {error}") from error


def _panelled(network: "Any", expected: Reference, facts: Facts) -> Forward:  # noqa: ANN401
    from graft.models.module_panels import ModulePanels, PanelHookForward

    panels = ModulePanels(network.to(torch.float32), facts.dtype)
    try:
        forward = _hook_forward(network, facts, partial(PanelHookForward, panels=panels))
        verify(forward, expected, "hook-panels", facts)
    except UnsupportedModelError:
        panels.undo()
        raise
    except MISFITS as error:  # such as a module that reads the weights of another
        panels.undo()
        log.info("%s: its products stay torch's: %s", facts.name, error)
        raise UnsupportedModelError(f"{facts.name} does not run on panels: {error}") from error
    return forward


def _set_exact(forward: Forward, expected: Reference, facts: Facts) -> None:
    """Find out whether other nodes of a step can change the last bits of a node's logits in 16
    bits: some of transformers' modules add up in an order that depends on the number of rows."""
    forward.exact = facts.invariant  # then it was verified
    if facts.invariant or facts.dtype == torch.float32:
        return
    try:
        check_invariant(forward, vocabulary=expected.vocabulary, name=facts.name)
        forward.exact = True
    except UnsupportedModelError:
        text = (
            "%s: in 16 bits drafting may change a token; load it with invariant=True if it must not"
        )
        log.warning(text, facts.name)


def _captured_forward(network: "Any", facts: Facts) -> Forward:  # noqa: ANN401
    try:
        return captured_forward(network, owned=facts.owned)
    except UnsupportedModelError as error:
        log.warning(NOT_CAPTURED, facts.name, error)
        raise


def _attention(facts: Facts) -> "Any":  # noqa: ANN401
    return invariant_attention if facts.invariant else fastest_attention(facts.device)


def _maybe_invariant(forward: Forward, facts: Facts) -> Forward:
    if facts.invariant and forward.storage.state_bytes:
        raise UnsupportedModelError("its recurrent layers have no invariant mode; leave it out")
    return InvariantForward(forward, device=facts.device) if facts.invariant else forward


def fastest_kind(facts: Facts) -> str:
    """Which forward is the fastest; why a GPU's is not captured in graphs is logged."""
    if facts.device.type == "cpu":
        if not facts.llama_shaped:
            panels = facts.owned and panels_are_faster(facts.config, facts.dtype)
            return "hook-panels" if panels else "hook"
        panels = facts.invariant or facts.int8 or facts.packed or facts.kv_dtype
        return "panels" if panels or panels_are_faster(facts.config, facts.dtype) else "lean"
    reason = why_not_graphed(facts)
    if reason is None:
        return "graphed" if facts.llama_shaped else "captured"
    log.warning(NOT_CAPTURED, facts.name, reason)
    return "lean" if facts.llama_shaped and not facts.int8 else "hook"


def why_not_graphed(facts: Facts) -> str | None:
    """What keeps a model on a GPU from running by CUDA graphs; None if nothing does."""
    if facts.int8:
        return "int8 weights are multiplied by torchao"
    if facts.invariant and facts.dtype == torch.float32:
        return "invariant mode computes in slabs in float32"
    return None if has_triton() else "Triton is not installed"
