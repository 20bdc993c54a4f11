"""Parts of transformers' modules as kernels of our own, which take fewer launches or read less.

A step of one token takes as long as its launches: each costs 2 to 3 µs, whatever it computes.
Every replacement is compared with the original on random numbers, and used only where it computes
the same up to roundings. All of them work row by row, or add up in an order that does not depend
on the number of rows.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

from graft.kernels.decoder_triton import gated_gelu, swiglu
from graft.kernels.experts_triton import MAX_PAIRS, choose_experts, expert_product, weighted_sum
from graft.kernels.product_choice import ChosenProduct
from graft.models.deferred import DTYPES, norm, rotate
from graft.models.known_modules import ROWS, close, random_like, rms_norm_of

EXPERTS = "graft"
ROTATION = "apply_rotary_pos_emb"  # transformers' name of the function in every model's file
SAME_INPUT = ("q_proj", "k_proj", "v_proj")
GATED = ("gate_proj", "up_proj")

rows_of_step: ContextVar[Tensor | None] = ContextVar("cache rows of a step's nodes", default=None)
Call = Callable[..., Any]
Linears = tuple[nn.Linear, ...]


class Replacements:
    """What takes the place of a model's functions while a step runs or is captured.

    In a model that is `owned`, matrices with the same input are laid side by side.
    """

    def __init__(self, model: PreTrainedModel, *, owned: bool) -> None:
        self._calls: list[tuple[dict[str, Any], str, Call]] = []  # of modules and files, by name
        modules = list(model.modules())
        joined = self._replace_joined(modules) if owned else set()
        alone = [(each,) for each in modules if _is_linear(each) and each not in joined]
        for (linear,), multiply in _products(alone):
            self._replace(linear, "forward", multiply)
        for module in modules:
            if call := rms_norm_of(module, norm) or _router_of(module):
                self._replace(module, "forward", call)
            if hasattr(module, "_apply_gate") and _gates_by_silu(module):
                self._replace(module, "_apply_gate", swiglu)
        for file in {sys.modules[type(each).__module__] for each in modules}:
            if ROTATION in vars(file):
                self._calls.append((vars(file), ROTATION, Rotation(vars(file)[ROTATION])))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Ours inside the block, the model's own after it."""
        own = [(place, name, place.get(name)) for place, name, _ in self._calls]
        try:
            for place, name, call in self._calls:
                place[name] = call
            yield
        finally:
            for place, name, before in own:
                if before is None:  # its class has it
                    place.pop(name, None)
                else:
                    place[name] = before

    def _replace(self, module: nn.Module, name: str, call: Call) -> None:
        self._calls.append((vars(module), name, call))

    def _replace_joined(self, modules: Sequence[nn.Module]) -> set[nn.Module]:
        """Gated MLPs, and queries, keys and values, by one product; the linear layers in them."""
        joined: set[nn.Module] = set()
        for gate in (swiglu, gated_gelu):
            mlps = {_children(each, GATED): each for each in modules if _is_mlp(each, gate)}
            for both, multiply in _products([*mlps], gated=gate is swiglu):
                inner = multiply if gate is swiglu else partial(_multiply_and_gate, multiply, gate)
                self._replace(mlps[both], "forward", partial(_through, mlps[both], inner))
                joined |= set(both)
        attentions = [each for module in modules if (each := _children(module, SAME_INPUT))]
        for several, multiply in _products(attentions):
            shared = SharedInput(multiply, [each.out_features for each in several])
            for place, each in enumerate(several):
                self._replace(each, "forward", partial(shared.part, place))
            joined |= set(several)
        return joined


def _is_linear(module: nn.Module) -> bool:
    weight = module.weight if type(module) is nn.Linear else None
    return type(weight) is nn.Parameter and weight.dtype in DTYPES and weight.is_contiguous()


def _children(module: nn.Module, names: Sequence[str]) -> Linears:
    """The linear layers with these names, all with or all without biases; none otherwise."""
    found = [getattr(module, name, None) for name in names]
    linears = [each for each in found if isinstance(each, nn.Linear) and _is_linear(each)]
    if len(linears) < len(names) or len({each.bias is None for each in linears}) > 1:
        return ()
    return tuple(linears) if len({each.in_features for each in linears}) == 1 else ()


def _products(
    groups: Sequence[Linears], *, gated: bool = False
) -> Iterator[tuple[Linears, Callable[[Tensor], Tensor]]]:
    """The product of each group of linear layers; those of equal shapes are measured as one."""
    kinds: dict[object, list[Linears]] = {}
    for group in groups:
        shapes = tuple(each.weight.shape for each in group)
        kinds.setdefault((shapes, group[0].weight.dtype, group[0].bias is None), []).append(group)
    for same in kinds.values():
        weights, biases = zip(*(_joined(group) for group in same), strict=True)
        product = ChosenProduct(weights, biases, gated=gated)
        for place, group in enumerate(same):
            yield group, partial(_multiply, product, place)


def _joined(group: Linears) -> tuple[Tensor, Tensor | None]:
    """Weights and biases, side by side in one memory, which the layers have from now on."""
    found = []
    for parameters in ([x.weight for x in group], [x.bias for x in group]):
        if parameters[0] is None:
            found.append(None)
            continue
        whole = parameters[0].detach() if len(group) == 1 else torch.cat([*parameters]).detach()
        for part, each in zip(whole.split([len(x) for x in parameters]), parameters, strict=True):
            each.data = part
        found.append(whole)
    return found[0], found[1]


def _multiply(product: ChosenProduct, place: int, x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    return product(place, flat).view(*x.shape[:-1], -1)


class SharedInput:
    """Layers that are called one after the other with the same input: the first call computes the
    results of all."""

    def __init__(self, multiply: Callable[[Tensor], Tensor], sizes: Sequence[int]) -> None:
        self._multiply, self._sizes = multiply, list(sizes)
        self._input: Tensor | None = None
        self._parts: dict[int, Tensor] = {}

    def part(self, place: int, x: Tensor) -> Tensor:
        """The result of one of them."""
        if x is not self._input or place not in self._parts:
            self._input = x
            self._parts = dict(enumerate(self._multiply(x).split(self._sizes, -1)))
        found = self._parts.pop(place)
        if not self._parts:
            self._input = None
        return found


def _is_mlp(module: nn.Module, gate: Callable[[Tensor], Tensor]) -> bool:
    """Whether it is down_proj(gate(gate_proj, up_proj)) without biases, by what it computes."""
    linears = _children(module, GATED)
    if not linears or not isinstance(getattr(module, "down_proj", None), nn.Linear):
        return False
    if linears[0].bias is not None:  # no gated product adds them
        return False
    x = random_like(linears[0].weight, ROWS, linears[0].in_features)
    with torch.no_grad():
        inner = gate(torch.cat([each(x) for each in linears], -1))
        return close(module.down_proj(inner), module(x))


def _multiply_and_gate(
    multiply: Callable[[Tensor], Tensor], gate: Callable[[Tensor], Tensor], x: Tensor
) -> Tensor:
    both = multiply(x)
    return gate(both.view(-1, both.shape[-1])).view(*x.shape[:-1], -1)


def _through(mlp: nn.Module, inner: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return mlp.down_proj(inner(x))


def _router_of(module: nn.Module) -> Call | None:
    """The experts with the highest logits, weighted by a softmax."""
    chosen, weight = getattr(module, "top_k", None), getattr(module, "weight", None)
    if not type(module).__name__.endswith("TopKRouter") or chosen is None or weight is None:
        return None
    x = random_like(weight, ROWS, weight.shape[-1])
    bias = getattr(module, "bias", None)
    with torch.no_grad(), suppress(RuntimeError, TypeError, ValueError):
        # In 32 bits, where hardly two logits are equal.
        logits, weights, numbers = copy.deepcopy(module).float()(x.float())
        expected = torch.zeros_like(logits).scatter(1, numbers, weights.to(logits.dtype))
        dtype = module(x)[1].dtype
        for among in (True, False):
            found = choose_experts(logits, chosen, among_chosen=among, dtype=logits.dtype)
            if close(torch.zeros_like(logits).scatter(1, found[1], found[0]), expected):
                product = ChosenProduct(
                    [weight.detach()], [None if bias is None else bias.detach()]
                )
                choose = partial(choose_experts, chosen=chosen, among_chosen=among, dtype=dtype)
                return partial(_route, product, choose)
    return None


def _route(product: ChosenProduct, choose: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = product(0, x.reshape(-1, x.shape[-1]).contiguous())
    return logits, *choose(logits)


def _gates_by_silu(module: nn.Module) -> bool:
    """Whether the experts of a module gate as `swiglu` does."""
    parameters = [each for each in module.parameters() if each.dtype in DTYPES]
    if not parameters:
        return False
    x = random_like(parameters[0], ROWS, 32)
    with torch.no_grad():
        return close(swiglu(x), module._apply_gate(x))


class Rotation:
    """A model's rotation of queries and keys in one launch, if it is one that `rotate` knows:
    that is found out at its first call, with random angles."""

    def __init__(self, own: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self._own = own
        self._rotated: dict[tuple[int, ...], int] = {}  # components by sizes; 0: another rotation

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        *args: Any,  # noqa: ANN401
        **named: Any,  # noqa: ANN401
    ) -> tuple[Tensor, Tensor]:
        """transformers' function, as its callers know it."""
        if args or named or q.dim() != 4 or len(q) != 1 or cos.dim() != 3:  # noqa: PLR2004
            return self._own(q, k, cos, sin, *args, **named)
        sizes = (q.shape[1], k.shape[1], q.shape[3], cos.shape[2])
        if sizes not in self._rotated:
            self._rotated[sizes] = self._tried(q, k, cos)
        if not self._rotated[sizes]:
            return self._own(q, k, cos, sin)
        return rotate(q, k, cos, sin, self._rotated[sizes])

    def _tried(self, q: Tensor, k: Tensor, cos: Tensor) -> int:
        """The components that turn; 0 if ours does something else."""
        width = cos.shape[2]
        queries, keys = (random_like(x, 1, x.shape[1], ROWS, x.shape[3]) for x in (q, k))
        for rotated, repeats in ((width, 2), (2 * width, 1)):  # angles for both halves, or for one
            if rotated > q.shape[3] or rotated % 2:
                continue
            angles = random_like(cos.float(), 1, ROWS, rotated // 2).repeat(1, 1, repeats)
            tables = angles.cos().to(cos.dtype), angles.sin().to(cos.dtype)
            with suppress(RuntimeError):  # shapes that its own does not take
                expected = self._own(queries, keys, *tables)
                found = rotate(queries, keys, *tables, rotated)
                if all(map(close, found, expected)):
                    return rotated
        return 0


def experts(module: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:  # noqa: ANN401
    """transformers' contract for experts: hidden [N, E] through the experts chosen [N, k], summed
    by their weights [N, k]."""
    rows = rows_of_step.get()
    if rows is None or chosen.numel() > MAX_PAIRS or len(rows) != len(chosen):
        return grouped_mm_experts_forward(module, hidden, chosen, weights)
    multiply = partial(expert_product, transposed=module.is_transposed)
    name, biased = ("gate_up_proj" if module.has_gate else "up_proj"), module.has_bias
    inner = multiply(hidden, chosen, rows, getattr(module, name))
    if biased:
        inner += getattr(module, f"{name}_bias")[chosen.flatten()]
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    outer = multiply(inner.contiguous(), chosen, rows, module.down_proj)
    if biased:
        outer += module.down_proj_bias[chosen.flatten()]
    if getattr(module, "has_post_expert_norm", False):
        outer = module.post_expert_norm(outer)
    return weighted_sum(outer.contiguous(), weights.contiguous())


ExpertsInterface.register(EXPERTS, experts)
