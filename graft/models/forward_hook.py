"""Any transformers decoder, run by its own modules with our attention.

transformers lets an attention function be registered by name; with its cache switched off it
builds no mask and hands every layer's queries, keys and values, and our keyword argument, to that
function, which writes the cache and attends over the tree. Architectures that drop the
argument would be silently wrong: `probe.py` refuses them at load. Recurrent layers beside attention
are run by `recurrent.py`.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from graft.errors import UnsupportedModelError
from graft.kernels.tree_attention_torch import tree_attention
from graft.kernels.tree_layout import TreeLayout
from graft.models.llama_shape import frequencies_of
from graft.models.recurrent import RecurrentLayers
from graft.models.state_step import StateStep
from graft.models.state_storage import StateStorage
from graft.models.storage import RowStorage
from graft.sampling import upload

NAME = "graft"
COUNTING = "graft_shapes"


class KeyShape(NamedTuple):
    """Key-value heads of an attention layer in this process, the size of its keys and values, and
    the query heads that share a key head."""

    heads: int
    size: int
    value_size: int
    group: int


@dataclass(frozen=True, slots=True)
class HookStep:
    """The step that a call of the attention function belongs to."""

    storage: RowStorage
    places: dict[int, int]  # of the attention layers in the storage
    layout: Any  # TreeLayout, or what else `attention` takes
    rows: Tensor  # [N]
    attention: Callable[..., Tensor]
    store: Callable[..., None]
    layers: int  # after which it may end
    queries: dict[int, Tensor] | None = None  # of the layers so far, where they are wanted
    seen: set[int] = field(default_factory=set)  # layers that called
    windowed: set[int] = field(default_factory=set)  # those of them that named a window


class LayersDoneError(Exception):
    """The last needed layer has written its keys and values."""


def attend(  # noqa: PLR0913  transformers' contract
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    graft_step: HookStep | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **ignored: Any,  # noqa: ANN401  dropout and whatever else a model passes along
) -> tuple[Tensor, None]:
    """transformers' attention contract: query [1, H, N, D], key and value [1, K, N, D]."""
    if graft_step is None:
        raise UnsupportedModelError("the model does not pass arguments through to its attention")
    layer = module.layer_idx
    graft_step.seen.add(layer)
    if sliding_window is not None:
        graft_step.windowed.add(layer)
    # Some layers have fewer heads than others, or smaller ones for values: zeros fill the rest.
    keys, values = graft_step.storage.kv[:, graft_step.places[layer], : key.shape[1]]
    graft_step.store(key, value, graft_step.rows, keys, values)
    if len(graft_step.seen) == graft_step.layers < len(graft_step.storage.kv[0]):
        raise LayersDoneError
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if graft_step.queries is not None:
        graft_step.queries[layer] = query[0] * scale
    rows = query[0].transpose(0, 1)
    if missing := keys.shape[2] - query.shape[3]:
        rows = F.pad(rows, (0, missing))
    attended = graft_step.attention(
        rows,
        keys,
        values,
        graft_step.layout,
        scale=scale,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return attended[None, ..., : value.shape[3]], None


def store_rows(key: Tensor, value: Tensor, rows: Tensor, keys: Tensor, values: Tensor) -> None:
    """See `hook_triton`; without padding."""
    for cached, new in ((keys, key), (values, value)):
        cached[..., : new.shape[3]].index_copy_(1, rows, new[0].to(cached.dtype))


def note_shape(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: Any,  # noqa: ANN401
    graft_shapes: dict[int, KeyShape] | None = None,
    **__: Any,  # noqa: ANN401
) -> tuple[Tensor, None]:
    """transformers' attention contract; notes the shapes of key and value [1, K, N, D]."""
    if graft_shapes is None:
        raise UnsupportedModelError("the model does not pass arguments through to its attention")
    heads = key.shape[1]
    shape = KeyShape(heads, key.shape[3], value.shape[3], query.shape[1] // heads)
    graft_shapes[module.layer_idx] = shape
    return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


AttentionInterface.register(NAME, attend)
AttentionInterface.register(COUNTING, note_shape)


class HookedAttention:
    """Makes a model use `attend` for a while and restores its own attention afterwards.

    The name of the attention stands in the config, which other models may share. So copies that
    name ours are made once, and take the place of the modules' own config objects only while a
    step runs: between steps, and after any exception, the model is as its owner left it.
    """

    def __init__(
        self, model: PreTrainedModel, name: str = NAME, experts: str | None = None
    ) -> None:
        """`experts` names what runs the experts of a mixture meanwhile, if not the model's own."""
        self._modules = [
            module
            for module in model.modules()
            if isinstance(vars(module).get("config"), PretrainedConfig)
        ]
        known: dict[int, Any] = {}
        self._copies = [copy.deepcopy(module.config, known) for module in self._modules]
        with self.used():
            model.set_attn_implementation(name)
            if experts:
                model.set_experts_implementation(experts)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Our attention inside the block, the model's own after it."""
        own = [module.config for module in self._modules]
        try:
            self._give(self._copies)
            yield
        finally:
            self._give(own)

    def _give(self, configs: list[PretrainedConfig]) -> None:
        for module, config in zip(self._modules, configs, strict=True):
            vars(module)["config"] = config  # as nn.Module would, at a tenth of the time


class HookedDecoder:
    """A decoder whose attention is replaced while a step runs, and what its layers are like."""

    def __init__(self, model: PreTrainedModel, *, experts: str | None = None) -> None:
        self.model = model
        config = model.config.get_text_config()
        self.recurrent = RecurrentLayers(model)
        try:
            self.hooked = HookedAttention(model, experts=experts)
            self.shapes, self.states = shapes_of(model, self.recurrent)
            self.windows = has_windows(config)
        except (AttributeError, ValueError) as error:
            reason = str(error).splitlines()[0][:200]
            raise UnsupportedModelError(f"its attention cannot be replaced ({reason})") from error
        if not self.states and len(self.shapes) != config.num_hidden_layers:
            raise UnsupportedModelError(
                f"only {len(self.shapes)} of {config.num_hidden_layers} layers use replaceable "
                "attention"
            )
        self.places = {layer: place for place, layer in enumerate(sorted(self.shapes))}
        heads = max((each.heads for each in self.shapes.values()), default=1)
        size = max((max(each.size, each.value_size) for each in self.shapes.values()), default=1)
        # Of a storage; what looks at its first layer needs one.
        self.rows = (max(len(self.shapes), 1), heads, size, model.dtype, model.device)

    @property
    def layers(self) -> int:
        """Layers with attention."""
        return len(self.shapes)

    def check_seen(self, step: HookStep) -> None:
        """UnsupportedModelError unless every layer called our attention as it should."""
        if len(step.seen) != self.layers:
            raise UnsupportedModelError(
                f"only {len(step.seen)} of {self.layers} layers use replaceable attention"
            )
        if self.windows and not step.windowed:
            raise UnsupportedModelError("its attention window is known to its mask only")

    def frequencies(self) -> list[Tensor]:
        """See Forward."""
        return frequencies_of(self.model)

    def weighs_plainly(self, layer: int, tokens: int) -> bool:  # noqa: ARG002
        """See Forward. One layer's cap, sinks or window count for all: not every config has them by
        layer."""
        config = self.model.config.get_text_config()
        capped = getattr(config, "attn_logit_softcapping", None)
        sinks = any(name.endswith("sinks") for name, _ in self.model.named_parameters())
        return not (capped or sinks or (self.windows and tokens > window_of(config)))

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        """See Forward."""
        return self.model.get_input_embeddings()(tokens)

    @property
    def head(self) -> Tensor:
        """[V, E]: the weight of the output layer."""
        return self.model.get_output_embeddings().weight.detach()


class HookForward:
    """Runs a transformers model through `attend`."""

    asynchronous, exact = False, False
    sizes = ()

    def __init__(
        self, model: PreTrainedModel, attention: Callable[..., Tensor] = tree_attention
    ) -> None:
        self.decoder, self.model, self.attention = HookedDecoder(model), model, attention
        self.frequencies, self.embed = self.decoder.frequencies, self.decoder.embed
        self.weighs_plainly = self.decoder.weighs_plainly
        self.feature_layers: frozenset[int] = frozenset()
        self._kept: Sequence[Tensor] = ()  # transformers' hidden states, the last one normed
        states = self.decoder.states
        self.storage = (
            StateStorage(*self.decoder.rows, states) if states else RowStorage(*self.decoder.rows)
        )

    def run(self, tokens: np.ndarray, layout: TreeLayout, outputs: np.ndarray) -> Tensor:
        """Write the nodes' keys and values, return logits [M, V] float32 of the nodes `outputs`."""
        with self._scanned(layout, outputs):
            return self._run(tokens, self._step(layout), outputs)

    def queries(self, tokens: np.ndarray, layout: TreeLayout) -> Tensor:
        """See Forward."""
        found: dict[int, Tensor] = {}
        last = np.array([len(tokens) - 1])
        with self._scanned(layout, last):
            self._run(tokens, self._step(layout, queries=found), last)
        return torch.stack([found[layer] for layer in sorted(found)])

    @torch.no_grad()  # not inference mode: what a caller's modules remember must stay trainable
    def _run(self, tokens: np.ndarray, step: HookStep, outputs: np.ndarray) -> Tensor:
        """Through all layers; logits [M, V] float32."""
        with self._watched():
            logits = self._call(tokens, step, outputs)
        self.decoder.check_seen(step)
        return logits.float()

    @torch.no_grad()
    def run_first(self, tokens: np.ndarray, layout: TreeLayout, layers: int) -> None:
        """See Forward."""
        assert not self.decoder.recurrent, "recurrent layers run as a whole"
        with suppress(LayersDoneError):
            self._call(tokens, self._step(layout, layers), np.zeros(1, np.int64))

    def _step(
        self,
        layout: TreeLayout,
        layers: int | None = None,
        queries: dict[int, Tensor] | None = None,
    ) -> HookStep:
        rows = torch.from_numpy(layout.rows).to(self.model.device)
        last = self.decoder.layers if layers is None else layers
        places = self.decoder.places
        return HookStep(
            self.storage, places, layout, rows, self.attention, store_rows, last, queries
        )

    def _scanned(self, layout: TreeLayout, outputs: np.ndarray) -> AbstractContextManager[None]:
        """Inside the block the recurrent layers score the step; nodes `outputs` keep their
        states."""
        if not isinstance(self.storage, StateStorage):
            return nullcontext()
        return self.decoder.recurrent.used(StateStep(self.storage, layout, outputs))

    def _call(self, tokens: np.ndarray, step: HookStep, outputs: np.ndarray) -> Tensor:
        """The model's own forward with our attention: logits [M, V]."""
        device = self.model.device
        with self.decoder.hooked.used():
            return self.model(
                input_ids=torch.from_numpy(tokens).to(device)[None],
                position_ids=torch.from_numpy(step.layout.positions).to(device)[None],
                use_cache=False,
                logits_to_keep=torch.from_numpy(outputs).to(device),
                graft_step=step,
                **({"output_hidden_states": True} if self._inner_features else {}),
            ).logits[0]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Inside the block hidden states are kept, if there are feature layers."""
        if not self.feature_layers:
            yield
            return

        def keep(_: nn.Module, __: tuple, output: Any) -> None:  # noqa: ANN401
            self._kept = output.hidden_states if self._inner_features else [output[0]]

        handle = self.model.base_model.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()

    @torch.no_grad()
    def features(self, nodes: np.ndarray, layers: Sequence[int]) -> Tensor:
        """See Forward."""
        rows = upload(torch.from_numpy(nodes), self._kept[-1].device)
        return torch.cat([self._kept[layer][0, rows] for layer in layers], -1)

    @property
    def _inner_features(self) -> bool:
        return max(self.feature_layers, default=-1) >= 0

    @torch.no_grad()
    def output_weight(self, tokens: Tensor | None) -> Tensor:
        """See Forward."""
        weight = self.decoder.head
        return weight if tokens is None else weight[tokens]


def is_split(model: PreTrainedModel) -> bool:
    """Whether transformers split the model over several processes (tensor parallel)."""
    return (getattr(model, "tp_size", None) or 1) > 1


@torch.no_grad()
def shapes_of(
    model: PreTrainedModel, recurrent: RecurrentLayers
) -> tuple[dict[int, KeyShape], list[Tensor]]:
    """Shapes of the attention layers, and of the recurrent layers' states, by scoring a token."""
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    shapes: dict[int, KeyShape] = {}
    with HookedAttention(model, COUNTING).used(), recurrent.recorded() as states:
        model(input_ids=token, use_cache=False, graft_shapes=shapes)
    return shapes, [states[place] for place in sorted(states)]


def window_of(config: PretrainedConfig) -> int | None:
    """The window of layers that have one, by the config."""
    named = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return next(filter(None, named), None)


def has_windows(config: PretrainedConfig) -> bool:
    """Whether some layer does not attend to the whole context, by the config."""
    window = window_of(config)
    longest = getattr(config, "max_position_embeddings", None)
    if window is None or (longest is not None and window >= longest):
        return False
    types = getattr(config, "layer_types", None)
    if types:
        return bool({"sliding_attention", "chunked_attention"} & set(types))
    return getattr(config, "use_sliding_window", True)
