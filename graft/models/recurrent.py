"""Recurrent layers of transformers' hybrid models, scored over trees.

Gated delta nets, Mamba-2 and short convolutions have one form in transformers: projections of each
token, and two functions that look at the tokens before it, a short convolution and a scan. The
layers' own code runs over all nodes of a step at once, with those two functions replaced by ones
that know the tree: by transformers' own functions from the states before (`state_step.py`), or by
kernels of ours in captured steps (`captured_states.py`).
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers import __version__ as transformers_version

from graft.errors import UnsupportedModelError

CONVOLUTION = "causal_conv1d_fn"
Advance = Callable[[list[Tensor], Tensor], tuple[Tensor, Tensor]]  # inputs, state -> output, state


class Convolution(NamedTuple):
    """A layer's causal convolution with `weight` [C, W], plus the bias [C], then the activation."""

    weight: Tensor
    bias: Tensor | None = None
    activation: str | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """A layer's scan. `chunk` takes inputs [1, n, ...] of consecutive tokens and a state [1, ...],
    `token` one token of several sequences, [n, ...] with states [n, ...]."""

    chunk: Advance
    token: Advance
    kernel: str | None = None  # of `recurrent_triton`, which computes the same with these options
    options: dict[str, Any] = field(default_factory=dict)


class RecurrentStep(Protocol):
    """A step whose nodes continue the states of their parents."""

    def convolve(self, state: int, inputs: Tensor, convolution: Convolution) -> Tensor:
        """[C, N]: the convolution over inputs [C, N] along each node's path; `state` is the place
        of its states."""

    def scan(self, state: int, inputs: list[Tensor], scan: Scan) -> Tensor:
        """[1, N, ...]: outputs of the nodes; `inputs` [1, N, ...] each."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A recurrent layer, its own forward, the name of its scan if it has one, and the place of its
    first state: that of the convolution, which that of the scan follows."""

    module: nn.Module
    forward: Callable
    scan: str | None
    state: int


class RecurrentLayers:
    """The recurrent layers of a model, in their order; their code can be run over a step."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._layers: list[_Layer] = []
        self._step: RecurrentStep | None = None
        states = 0
        for module in model.modules():
            forward = inspect.unwrap(type(module).forward)
            names = forward.__code__.co_names if hasattr(forward, "__code__") else ()
            if CONVOLUTION not in names:
                continue
            if not hasattr(Cache, "is_recording_past"):
                raise UnsupportedModelError(
                    f"recurrent layers need transformers 5.21 or newer, this is "
                    f"{transformers_version}; install it: pip install -U transformers"
                )
            scan = next((name for name in SCANS if name in names), None)
            if scan is None and "update_recurrent_state" in names:
                raise UnsupportedModelError(f"its recurrent layers ({type(module).__name__})")
            self._layers.append(_Layer(module, forward, scan, states))
            states += 1 if scan is None else 2
        self._forwards = [self._over_trees(layer) for layer in self._layers]

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def without_kernel(self) -> str | None:
        """The class of a layer whose scan no kernel of ours computes."""
        for layer in self._layers:
            if layer.scan in WITHOUT_KERNEL:
                return type(layer.module).__name__
        return None

    @contextmanager
    def recorded(self) -> Iterator[dict[int, Tensor]]:
        """Inside the block the layers run as they are; states are collected by their places, for
        their shapes."""
        found: dict[int, Tensor] = {}
        own = [
            _with_cache(layer, layer.forward, _Recorder(layer.state, found))
            for layer in self._layers
        ]
        with self._given(own):
            yield found

    @contextmanager
    def used(self, step: RecurrentStep) -> Iterator[None]:
        """Inside the block the layers score the step."""
        self._step = step
        try:
            with self._given(self._forwards):
                yield
        finally:
            self._step = None

    @contextmanager
    def _given(self, forwards: Sequence[Callable]) -> Iterator[None]:
        try:
            for layer, forward in zip(self._layers, forwards, strict=True):
                vars(layer.module)["forward"] = forward
            yield
        finally:
            for layer in self._layers:
                vars(layer.module).pop("forward", None)

    def _over_trees(self, layer: _Layer) -> Callable:
        """A layer's forward, with the functions replaced that look at earlier tokens."""
        own = layer.forward
        names = own.__globals__ | {CONVOLUTION: partial(self._convolve, layer.state)}
        if layer.scan:
            token, adapt = SCANS[layer.scan]
            functions = own.__globals__[layer.scan], own.__globals__[token]
            names[layer.scan] = adapt(partial(self._scan, layer.state + 1), *functions)
        forward = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
        forward.__kwdefaults__ = own.__kwdefaults__
        return _with_cache(layer, forward, _NoCache())

    def _convolve(
        self,
        state: int,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **_: Any,  # noqa: ANN401  what other layouts of a batch need
    ) -> Tensor:
        """The layer's causal convolution [1, C, N] of inputs [1, C, N] along the paths of trees."""
        assert self._step is not None
        convolution = Convolution(weight, bias, activation)
        return self._step.convolve(state, inputs[0], convolution)[None]

    def _scan(self, state: int, inputs: list[Tensor], scan: Scan) -> Tensor:
        assert self._step is not None
        return self._step.scan(state, inputs, scan)


class _NoCache:
    """Stands for transformers' cache, so that a layer takes the way of a whole sequence."""

    def get_conv_state(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """No state: it is in our storage."""

    get_recurrent_state = update_recurrent_state = get_conv_state

    def is_recording_past(self, *_: Any) -> bool:  # noqa: ANN401
        """transformers records nothing."""
        return False

    def update_conv_state(self, inputs: Tensor, *_: Any, **__: Any) -> Tensor:  # noqa: ANN401
        """The inputs alone: earlier ones are in our storage."""
        return inputs


class _Recorder(_NoCache):
    """Collects a layer's states: the convolution's at `state`, the scan's behind it."""

    def __init__(self, state: int, found: dict[int, Tensor]) -> None:
        self._state, self._found = state, found

    def update_conv_state(
        self,
        inputs: Tensor,
        *_: Any,  # noqa: ANN401
        conv_kernel_size: int,
        **__: Any,  # noqa: ANN401
    ) -> Tensor:
        """Inputs [1, C, N]: the state has those of the tokens before."""
        self._found[self._state] = inputs.new_empty(inputs.shape[1], conv_kernel_size - 1)
        return inputs

    def update_recurrent_state(self, state: Tensor, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """State [1, ...] of the scan."""
        self._found[self._state + 1] = state[0]


def _with_cache(layer: _Layer, forward: Callable, cache: _NoCache) -> Callable:
    """A layer's forward with our cache, whatever its name, and without a padding mask."""
    named = inspect.signature(forward).parameters
    name = "cache_params" if "cache_params" in named else "past_key_values"
    given = {name: cache, "attention_mask": None}

    def call(*args: Any, **options: Any) -> Tensor:  # noqa: ANN401
        own = {key: value for key, value in options.items() if not key.startswith("graft_")}
        return forward(layer.module, *args, **own | given)

    return call


def _delta_rule(run: Callable, chunk: Callable, token: Callable) -> Callable:
    """Gated delta rules: query, key, value [1, N, H, D], decay `g` and `beta`."""

    def scan(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,  # noqa: ANN401
    ) -> tuple[Tensor, Tensor]:
        def call(function: Callable, inputs: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
            *qkv, decay, strength = inputs
            return function(
                *qkv,
                g=decay,
                beta=strength,
                initial_state=state,
                output_final_state=True,
                use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
            )

        def call_token(inputs: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
            output, state = call(token, [each[:, None] for each in inputs], state)
            return output[:, 0], state

        options = {"normed": use_qk_l2norm_in_kernel}
        functions = Scan(partial(call, chunk), call_token, "delta_rule", options)
        return run([query, key, value, g, beta], functions), query

    return scan


def _mamba2(run: Callable, chunk: Callable, token: Callable) -> Callable:
    """Mamba-2: inputs [1, N, H, P], time steps [1, N, H], B and C [1, N, G, S]."""

    def scan(  # noqa: PLR0913  transformers' contract
        inputs: Tensor,
        steps: Tensor,
        rates: Tensor,
        b: Tensor,
        c: Tensor,
        *,
        D: Tensor,  # noqa: N803  transformers' name
        dt_bias: Tensor,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        **options: Any,  # noqa: ANN401
    ) -> tuple[Tensor, Tensor]:
        ours = {"rates": rates, "skip": D, "bias": dt_bias, "limits": dt_limit}
        options |= {
            "return_final_states": True, "D": D, "dt_bias": dt_bias, "dt_limit": dt_limit,
        }  # fmt: skip

        def call_chunk(parts: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
            x, dt, *keys = parts
            return chunk(x, dt, rates, *keys, **options | {"initial_states": state})

        def call_token(parts: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
            x, dt, *keys = parts
            size, state = x.shape[-1], state.clone()  # which is changed in place
            output = token(
                state,
                x,
                dt[..., None].expand(-1, -1, size),
                rates[:, None, None].expand(-1, size, state.shape[-1]),
                *keys,
                D[:, None].expand(-1, size),
                dt_bias=dt_bias[:, None].expand(-1, size),
                dt_softplus=True,
            )
            return output, state

        functions = Scan(call_chunk, call_token, "selective_update", ours)
        return run([inputs, steps, b, c], functions), inputs

    return scan


def _mamba(run: Callable, _: Callable, token: Callable) -> Callable:
    """Mamba: inputs, time steps and gate [1, C, N], B and C [1, S, N]. Its scan takes no state: a
    chunk goes token by token, as the scan itself does without a kernel."""

    def scan(  # noqa: PLR0913  transformers' contract
        inputs: Tensor,
        steps: Tensor,
        rates: Tensor,
        b: Tensor,
        c: Tensor,
        *,
        D: Tensor,  # noqa: N803  transformers' name
        z: Tensor,
        delta_bias: Tensor,
        **_: Any,  # noqa: ANN401
    ) -> tuple[Tensor, Tensor]:
        def call_token(parts: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
            x, dt, *keys, gate = parts
            state = state.clone()  # which is changed in place
            options = {"z": gate, "dt_bias": delta_bias, "dt_softplus": True}
            return token(state, x, dt, rates, *keys, D, **options), state

        def call_chunk(parts: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
            found = []
            for place in range(parts[0].shape[1]):
                output, state = call_token([each[:, place] for each in parts], state)
                found.append(output)
            return torch.stack(found, 1), state

        nodes = [each.transpose(1, 2) for each in (inputs, steps, b, c, z)]
        return run(nodes, Scan(call_chunk, call_token)).transpose(1, 2), inputs

    return scan


# transformers' scan of a whole sequence: its function for one token, and how both are called
SCANS: dict[str, tuple[str, Callable]] = {
    "torch_chunk_gated_delta_rule": ("torch_recurrent_gated_delta_rule", _delta_rule),
    "chunk_kimi_delta_attention": ("recurrent_kimi_delta_attention", _delta_rule),
    "mamba2_chunk_scan": ("mamba2_selective_state_update", _mamba2),
    "mamba_selective_scan": ("mamba_selective_state_update", _mamba),
}
WITHOUT_KERNEL = ("mamba_selective_scan",)
