"""Recurrent layers of transformers' hybrid models, scored over trees.

Gated delta nets, Mamba-2 and short convolutions have one form in transformers: projections of each
token, and two functions that look at the tokens before it, a short convolution and a scan. The
layers' own code runs over all nodes of a step at once, with those two functions replaced by ones
that know the tree: a prefill chunk is scanned by the layer's own function from the state before it,
a tree level by level, each node from its parent's state (`state_storage.py`).
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import pairwise
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from graft.errors import UnsupportedModelError
from graft.kernels.tree_layout import TreeLayout
from graft.models.state_storage import StateStorage
from graft.sampling import upload

CONVOLUTION = "causal_conv1d_fn"
Scan = Callable[[list[Tensor], Tensor], tuple[Tensor, Tensor]]  # inputs, state -> output, state


class RecurrentLayers:
    """The recurrent layers of a model, in their order; their code can be run over a step."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._modules = [module for module in model.modules() if _is_recurrent(module)]
        self._step: StateStep | None = None
        self._forwards = [self._bound(place) for place in range(len(self._modules))]

    def __len__(self) -> int:
        return len(self._modules)

    @property
    def names(self) -> list[str]:
        """Those of the states: one of the convolution and, where a layer scans, one of the scan."""
        return [name for i in range(len(self)) for name in self._state_names(i)]

    @contextmanager
    def recorded(self) -> Iterator[dict[str, Tensor]]:
        """Inside the block the layers run as they are; the shapes of their states are collected."""
        found: dict[str, Tensor] = {}
        own = [
            partial(_call, inspect.unwrap(type(module).forward), module, _Recorder(place, found))
            for place, module in enumerate(self._modules)
        ]
        with self._given(own):
            yield found

    @contextmanager
    def used(self, step: "StateStep") -> Iterator[None]:
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
            for module, forward in zip(self._modules, forwards, strict=True):
                vars(module)["forward"] = forward
            yield
        finally:
            for module in self._modules:
                vars(module).pop("forward", None)

    def _bound(self, place: int) -> Callable:
        """A layer's forward, with the functions replaced that look at earlier tokens."""
        module = self._modules[place]
        own = inspect.unwrap(type(module).forward)
        replaced: dict[str, Any] = {CONVOLUTION: partial(self._convolve, place)}
        if name := _scan_of(own):
            token, adapt = SCANS[name]
            functions = own.__globals__[name], own.__globals__[token]
            replaced[name] = adapt(partial(self._scan, place), *functions)
        elif "update_recurrent_state" in own.__code__.co_names:
            raise UnsupportedModelError(f"its recurrent layers ({type(module).__name__})")
        names = own.__globals__ | replaced
        forward = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
        forward.__kwdefaults__ = own.__kwdefaults__
        return partial(_call, forward, module, _NO_CACHE)

    def _state_names(self, place: int) -> list[str]:
        scans = _scan_of(inspect.unwrap(type(self._modules[place]).forward))
        return [f"{place} convolution", *([f"{place} scan"] if scans else [])]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def _convolve(
        self,
        place: int,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **_: Any,  # noqa: ANN401  what other layouts of a batch need
    ) -> Tensor:
        """The layer's causal convolution [1, C, N] of inputs [1, C, N] along the paths of trees."""
        assert self._step is not None
        convolved = self._step.convolve(self._index[f"{place} convolution"], inputs[0], weight)
        if bias is not None:
            convolved = convolved + bias.float()[:, None]
        convolved = convolved.to(weight.dtype)
        if activation is not None:
            convolved = ACT2FN[activation](convolved)
        return convolved.to(inputs.dtype)[None]

    def _scan(self, place: int, inputs: list[Tensor], chunk: Scan, token: Scan) -> Tensor:
        assert self._step is not None
        return self._step.scan(self._index[f"{place} scan"], inputs, chunk, token)


class StateStep:
    """A step of a model with recurrent layers: which nodes follow which state, and whose new states
    are stored."""

    def __init__(self, storage: StateStorage, layout: TreeLayout, outputs: np.ndarray) -> None:
        self._storage, self._layout = storage, layout
        bounds = list(pairwise(layout.first_node.tolist()))
        before = [storage.before(segments) for segments in layout.segments]
        asked = np.zeros(len(layout.rows), bool)
        asked[outputs] = True
        self._chunks: list[tuple[int, list[int]]] = []  # slot before, borders of its pieces
        trees = []
        for b, (first, last) in enumerate(bounds):
            if last - first > 1 and not asked[first : last - 1].any():
                total = sum(count for _, count in layout.segments[b])
                ends = _multiples(total, total + last - first, storage.spacing)
                asked[[first + end - total - 1 for end in ends]] = True
                inner = [first + end - total for end in ends if end < total + last - first]
                self._chunks.append((before[b], [first, *inner, last]))
            else:
                trees.append(b)
        self._kept = np.flatnonzero(asked)
        slots = np.full(len(layout.rows), -1)
        slots[self._kept] = storage.take(layout.rows, self._kept)
        self._slots, self._before = slots, np.array(before)
        self._levels = _levels(layout, trees)

    def convolve(self, index: int, inputs: Tensor, weight: Tensor) -> Tensor:
        """[C, N] float32: convolution with `weight` [C, W] over the inputs [C, N] along each node's
        path."""
        states = self._storage.states[index]  # [slots, C, W - 1]
        device = inputs.device
        before = states[self._on(self._before, device)].to(inputs.dtype)
        columns = torch.cat([before.transpose(0, 1).flatten(1), inputs], 1)
        places = self._on(self._windows(weight.shape[1]), device)  # [N, W]
        taps = weight.float()
        convolved = sum(
            columns[:, places[:, tap]].float() * taps[:, tap, None]
            for tap in range(weight.shape[1])
        )
        kept = self._on(self._kept, device)
        last = columns[:, places[kept, 1:]].transpose(0, 1)  # [n, C, W - 1]
        states[self._on(self._slots[self._kept], device)] = last.to(states.dtype)
        return convolved

    def scan(self, index: int, inputs: list[Tensor], chunk: Scan, token: Scan) -> Tensor:
        """[1, N, ...]: outputs of the nodes; `inputs` [1, N, ...] each.

        `chunk` takes inputs [1, n, ...] of consecutive tokens and a state [1, ...], `token` one
        token of several sequences, [n, ...] with states [n, ...].
        """
        states, device = self._storage.states[index], inputs[0].device
        output: Tensor | None = None

        def put(where: slice | Tensor, part: Tensor) -> None:
            nonlocal output
            if output is None:
                output = part.new_empty(len(self._slots), *part.shape[1:])
            output[where] = part

        for slot, borders in self._chunks:
            state = states[slot : slot + 1]
            for first, last in pairwise(borders):
                part, state = chunk([each[:, first:last] for each in inputs], state)
                put(slice(first, last), part[0])
                states[self._slots[last - 1]] = state[0].to(states.dtype)
        level = states[self._on(self._before, device)]
        for nodes, parents in self._levels:
            chosen = self._on(nodes, device)
            part, level = token(
                [each[0, chosen] for each in inputs], level[self._on(parents, device)]
            )
            put(chosen, part)
            stored = self._slots[nodes] >= 0
            rows = self._on(self._slots[nodes[stored]], device)
            states[rows] = level[self._on(np.flatnonzero(stored), device)].to(states.dtype)
        assert output is not None
        return output[None]

    def _windows(self, width: int) -> np.ndarray:
        """[N, width]: columns of each node's last inputs, those of the sequences' states first."""
        first, past = self._layout.first_node, width - 1
        offset = past * (len(first) - 1)
        places = np.empty((len(self._layout.rows), width), np.int64)
        for b, (start, end) in enumerate(pairwise(first.tolist())):
            state = b * past + np.arange(past)
            for node in range(start, end):
                parent = self._layout.parents[node]
                earlier = state if parent < 0 else places[start + parent, 1:]
                places[node] = [*earlier, offset + node]
        return places

    @staticmethod
    def _on(numbers: np.ndarray, device: torch.device) -> Tensor:
        return upload(torch.from_numpy(numbers), device)


def _levels(layout: TreeLayout, trees: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Nodes of these trees by depth, each with its parent's place in the level before, at first
    among the sequences."""
    found, first = [], layout.first_node
    nodes, parents = first[:-1][trees], np.array(trees, np.int64)
    owner = np.repeat(np.arange(len(first) - 1), np.diff(first))
    flat = np.where(layout.parents < 0, -1, layout.parents + first[:-1][owner])
    while len(nodes):
        found.append((nodes, parents))
        place = np.full(len(flat) + 1, -1)  # the last stands for no parent
        place[nodes] = np.arange(len(nodes))
        nodes = np.flatnonzero(place[flat] >= 0)
        parents = place[flat[nodes]]
    return found


def _multiples(first: int, last: int, spacing: int) -> list[int]:
    """Multiples of `spacing` behind `first`, up to `last`."""
    return list(range((first // spacing + 1) * spacing, last + 1, spacing))


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


_NO_CACHE = _NoCache()


class _Recorder(_NoCache):
    """Notes the shapes of a layer's states."""

    def __init__(self, place: int, found: dict[str, Tensor]) -> None:
        self._place, self._found = place, found

    def update_conv_state(
        self,
        inputs: Tensor,
        *_: Any,  # noqa: ANN401
        conv_kernel_size: int,
        **__: Any,  # noqa: ANN401
    ) -> Tensor:
        """Inputs [1, C, N]: the state has those of the tokens before."""
        shape = inputs.shape[1], conv_kernel_size - 1
        self._found[f"{self._place} convolution"] = inputs.new_empty(shape)
        return inputs

    def update_recurrent_state(self, state: Tensor, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """State [1, ...] of the scan."""
        self._found[f"{self._place} scan"] = state[0]


def _call(
    forward: Callable,
    module: nn.Module,
    cache: _NoCache,
    *args: Any,  # noqa: ANN401
    **options: Any,  # noqa: ANN401
) -> Tensor:
    """A layer's forward with our cache, whatever its name, and without a padding mask."""
    named = inspect.signature(forward).parameters
    name = "cache_params" if "cache_params" in named else "past_key_values"
    options = {key: value for key, value in options.items() if not key.startswith("graft_")}
    return forward(module, *args, **options | {name: cache, "attention_mask": None})


def _is_recurrent(module: nn.Module) -> bool:
    own = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return own is not None and CONVOLUTION in own.co_names


def _scan_of(forward: Callable) -> str | None:
    return next((name for name in SCANS if name in forward.__code__.co_names), None)


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

        return run([query, key, value, g, beta], partial(call, chunk), call_token), query

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
        **options: Any,  # noqa: ANN401
    ) -> tuple[Tensor, Tensor]:
        options = options | {"return_final_states": True, "D": D, "dt_bias": dt_bias}

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

        return run([inputs, steps, b, c], call_chunk, call_token), inputs

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
        return run(nodes, call_chunk, call_token).transpose(1, 2), inputs

    return scan


# transformers' scan of a whole sequence: its function for one token, and how both are called
SCANS: dict[str, tuple[str, Callable]] = {
    "torch_chunk_gated_delta_rule": ("torch_recurrent_gated_delta_rule", _delta_rule),
    "chunk_kimi_delta_attention": ("recurrent_kimi_delta_attention", _delta_rule),
    "mamba2_chunk_scan": ("mamba2_selective_state_update", _mamba2),
    "mamba_selective_scan": ("mamba_selective_state_update", _mamba),
}
