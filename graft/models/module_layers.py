"""A transformers decoder as the layers of captured steps: its own modules, once per graph.

Modules of transformers launch several kernels for what takes one: norms, rotations, attention,
experts. While a graph is captured these are replaced, and linear layers by the products that
are fastest on this GPU. A replacement is used only where it computes what the original does;
`probe.py` then compares the whole with the network itself.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

from graft.errors import UnsupportedModelError
from graft.kernels.decoder_triton import add_norm, move_rows
from graft.kernels.experts_triton import MAX_PAIRS, expert_product
from graft.kernels.hook_triton import rotate_both, store_rows
from graft.kernels.product_choice import ChosenProduct
from graft.kernels.split_attention_triton import attend
from graft.models.device_step import DeviceStep
from graft.models.forward_hook import HookedDecoder, HookStep, LayersDoneError, is_split
from graft.models.storage import LazyRowStorage

EXPERTS = "graft"
ROTATION = "apply_rotary_pos_emb"  # transformers' name of the function in every model's file
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDINGS = 4  # that a replacement may differ by, relative to the largest element

_rows: ContextVar[Tensor | None] = ContextVar("rows of the step's nodes", default=None)


class ModuleLayers:
    """See `forward_graphed.Layers`."""

    def __init__(self, model: PreTrainedModel) -> None:
        if is_split(model):
            raise UnsupportedModelError("its layers are split over processes")
        self._decoder = decoder = HookedDecoder(model, experts=EXPERTS)
        if decoder.states:
            raise UnsupportedModelError("its recurrent layers are not captured")
        groups = {(each.heads, each.group) for each in decoder.shapes.values()}
        if len(groups) > 1:
            raise UnsupportedModelError("its layers have different numbers of heads")
        ((_, self.group),) = groups
        self.storage = LazyRowStorage(*decoder.rows)
        self.queries: list[Tensor] | None = None
        self.frequencies, self.embed = decoder.frequencies, decoder.embed
        self.weighs_plainly = decoder.weighs_plainly
        self._model, self._base = model, model.base_model
        self._replacements = Replacements(model)
        self._output: type[Any] | None = None  # what the model without its output layer returns

    @property
    def head(self) -> Tensor:
        """See Layers."""
        return self._decoder.head

    def reach(self, positions: int) -> bool:  # noqa: ARG002
        """See Layers. Angles are computed in every step."""
        return False

    def features(self, step: DeviceStep, kept: Mapping[int, Tensor]) -> Tensor:
        """See Layers."""
        output = self._run(
            step, self._decoder.layers, **({"output_hidden_states": True} if kept else {})
        )
        for layer, rows in kept.items():
            rows.copy_(output.hidden_states[layer][0])
        return output.last_hidden_state[0]

    def logits(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        """See Layers. The model's own forward around given features: it may scale or cap."""
        assert self._output is not None, "features come before logits"
        given = self._output(last_hidden_state=features[None])
        tokens = torch.zeros(1, len(features), dtype=torch.int64, device=features.device)
        with self._used(None), replaced({self._base: lambda *_, **__: given}):
            logits = self._model(input_ids=tokens, use_cache=False).logits[0]
        return logits.float() if out is None else out.copy_(logits)

    def compute_first(self, step: DeviceStep, layers: int) -> None:
        """See Layers."""
        with suppress(LayersDoneError):
            self._run(step, layers)

    def _run(self, step: DeviceStep, layers: int, **options: Any) -> Any:  # noqa: ANN401
        """The model's output without its output layer."""
        move_rows(self.storage.kv, step.moves, step.moved)
        found: dict[int, Tensor] | None = None if self.queries is None else {}
        hooked = HookStep(
            self.storage, self._decoder.places, step.plan, step.rows, _attend, store_rows, layers,
            found,
        )  # fmt: skip
        with self._used(step.rows):
            output = self._base(
                input_ids=step.tokens[None],
                position_ids=step.positions[None],
                use_cache=False,
                graft_step=hooked,
                **options,
            )
        self._decoder.check_seen(hooked)
        if self.queries is not None and found:
            self.queries += [found[layer] for layer in sorted(found)]
        self._output = type(output)
        return output

    @contextmanager
    def _used(self, rows: Tensor | None) -> Iterator[None]:
        """The model with our attention and replacements, for nodes with these cache rows."""
        token = _rows.set(rows)
        try:
            with ExitStack() as stack:
                stack.enter_context(self._decoder.hooked.used())
                stack.enter_context(self._replacements.used())
                # What modules remember must stay trainable.
                stack.enter_context(torch.inference_mode(mode=False))
                stack.enter_context(torch.no_grad())
                yield
        finally:
            _rows.reset(token)


def _attend(query: Tensor, keys: Tensor, values: Tensor, plan: Any, **options: Any) -> Tensor:  # noqa: ANN401
    return attend(query.contiguous(), keys, values, plan, **options)


class Replacements:
    """What takes the place of a model's modules and functions while it is captured."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._forwards = {**_linears(model), **_norms(model)}
        files = {sys.modules[type(module).__module__] for module in model.modules()}
        self._rotations = {
            file: Rotation(vars(file)[ROTATION]) for file in files if ROTATION in vars(file)
        }

    @contextmanager
    def used(self) -> Iterator[None]:
        """Ours inside the block, the model's own after it."""
        try:
            for file, rotation in self._rotations.items():
                _set_rotation(file, rotation)
            with replaced(self._forwards):
                yield
        finally:
            for file, rotation in self._rotations.items():
                _set_rotation(file, rotation.own)


def _set_rotation(file: ModuleType, rotation: Callable[..., Any]) -> None:
    vars(file)[ROTATION] = rotation


@contextmanager
def replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Modules with another forward inside the block."""
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module in forwards:
            vars(module).pop("forward", None)


def _linears(model: PreTrainedModel) -> dict[nn.Module, Callable[..., Tensor]]:
    """The products of linear layers; those of equal shape are measured as one."""
    kinds: dict[tuple[object, ...], list[nn.Linear]] = {}
    for module in model.modules():
        if type(module) is nn.Linear and _is_plain(module.weight):
            kind = (tuple(module.weight.shape), module.weight.dtype, module.bias is None)
            kinds.setdefault(kind, []).append(module)
    found: dict[nn.Module, Callable[..., Tensor]] = {}
    for modules in kinds.values():
        weights = [module.weight.detach() for module in modules]
        biases = [None if module.bias is None else module.bias.detach() for module in modules]
        product = ChosenProduct(weights, biases)
        found |= {each: partial(_multiply, product, i) for i, each in enumerate(modules)}
    return found


def _is_plain(weight: Tensor) -> bool:
    return type(weight) is nn.Parameter and weight.dtype in DTYPES and weight.is_contiguous()


def _multiply(product: ChosenProduct, index: int, x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    return product(index, flat).view(*x.shape[:-1], -1)


def _norms(model: PreTrainedModel) -> dict[nn.Module, Callable[..., Tensor]]:
    """RMS norms, with a gain that is the weight or one more."""
    found: dict[nn.Module, Callable[..., Tensor]] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        named = type(module).__name__.endswith("RMSNorm")
        if not named or epsilon is None or weight is None or weight.dim() != 1:
            continue
        generator = torch.Generator(weight.device).manual_seed(0)
        x = torch.randn(4, len(weight), generator=generator, device=weight.device).to(weight.dtype)
        with torch.no_grad():
            expected = module(x)
            gains = (weight.detach(), 1 + weight.detach().float())
            right = [each for each in gains if _close(_norm(each, epsilon, x), expected)]
        if right:
            found[module] = partial(_norm, right[0], epsilon)
    return found


def _norm(gain: Tensor, epsilon: float, x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    return add_norm(flat, None, gain, epsilon).view(x.shape)


def _close(found: Tensor, expected: Tensor) -> bool:
    """Equal up to a few roundings."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    error = (found.double() - expected.double()).abs().max()
    largest = float(expected.double().abs().max())
    return float(error) <= ROUNDINGS * torch.finfo(expected.dtype).eps * largest


class Rotation:
    """A model's rotation of queries and keys in one launch, if it is one that `rotate_both` knows:
    that is found out at its first call, with random angles."""

    def __init__(self, own: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.own = own
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
            return self.own(q, k, cos, sin, *args, **named)
        sizes = (q.shape[1], k.shape[1], q.shape[3], cos.shape[2])
        if sizes not in self._rotated:
            self._rotated[sizes] = self._tried(q, k, cos)
        if not self._rotated[sizes]:
            return self.own(q, k, cos, sin)
        return rotate_both(q, k, cos, sin, self._rotated[sizes])

    def _tried(self, q: Tensor, k: Tensor, cos: Tensor) -> int:
        """The components that turn; 0 if ours does something else."""
        nodes, width = 3, cos.shape[2]
        generator = torch.Generator(q.device).manual_seed(0)
        draw = partial(torch.randn, generator=generator, device=q.device)
        queries, keys = (draw(1, x.shape[1], nodes, x.shape[3]).to(x.dtype) for x in (q, k))
        for rotated, repeats in (
            (width, 2),
            (2 * width, 1),
        ):  # both halves have their angles, or one
            if rotated > q.shape[3] or rotated % 2:
                continue
            angles = draw(1, nodes, rotated // 2).repeat(1, 1, repeats)
            tables = angles.cos().to(cos.dtype), angles.sin().to(cos.dtype)
            with suppress(RuntimeError):  # shapes that its own does not take
                expected = self.own(queries, keys, *tables)
                found = rotate_both(queries, keys, *tables, rotated)
                if all(map(_close, found, expected)):
                    return rotated
        return 0


def experts(module: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:  # noqa: ANN401
    """transformers' contract for experts: hidden [N, E] through the experts chosen [N, k], summed
    by their weights [N, k]."""
    rows = _rows.get()
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
    weighted = outer * weights.reshape(-1, 1)
    return weighted.view(*chosen.shape, -1).sum(1).to(hidden.dtype)


ExpertsInterface.register(EXPERTS, experts)
