"""A transformers decoder as the layers of captured steps: its own modules, once per graph.

Attention is ours, as in `forward_hook`, and so are convolutions and scans of recurrent layers. What
takes several launches is replaced (`replacements`). `probe.py` compares the whole with the network
itself.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from graft.errors import UnsupportedModelError
from graft.kernels.decoder_triton import move_rows
from graft.kernels.split_attention_triton import attend
from graft.models.captured_states import CapturedStates
from graft.models.deferred import Deferral, store
from graft.models.device_step import DeviceStep
from graft.models.forward_hook import HookedDecoder, HookStep, LayersDoneError, is_split
from graft.models.replacements import EXPERTS, Replacements, rows_of_step
from graft.models.state_storage import LazyStateStorage
from graft.models.storage import LazyRowStorage


class ModuleLayers:
    """See `forward_graphed.Layers`."""

    def __init__(self, model: PreTrainedModel, *, owned: bool = False) -> None:
        """A model that is `owned` may be changed as `Replacements` says."""
        if is_split(model):
            raise UnsupportedModelError("its layers are split over processes")
        self._decoder = decoder = HookedDecoder(model, experts=EXPERTS)
        if found := decoder.recurrent.without_kernel:
            raise UnsupportedModelError(f"its recurrent layers ({found}) are not captured")
        groups = {(each.heads, each.group) for each in decoder.shapes.values()}
        if len(groups) > 1:
            raise UnsupportedModelError("its layers have different numbers of heads")
        self.group = max((group for _, group in groups), default=1)
        self.storage = (
            LazyStateStorage(*decoder.rows, decoder.states)
            if decoder.states
            else LazyRowStorage(*decoder.rows)
        )
        self.queries: list[Tensor] | None = None
        self.frequencies, self.embed = decoder.frequencies, decoder.embed
        self.weighs_plainly = decoder.weighs_plainly
        self._model, self._base = model, model.base_model
        self._replacements = Replacements(model, owned=owned)
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
        with self._used(None):
            vars(self._base)["forward"] = lambda *_, **__: given
            try:
                logits = self._model(input_ids=tokens, use_cache=False).logits[0]
            finally:
                del vars(self._base)["forward"]
        return logits.float() if out is None else out.copy_(logits)

    def compute_first(self, step: DeviceStep, layers: int) -> None:
        """See Layers."""
        assert not self._decoder.recurrent, "recurrent layers run as a whole"
        with suppress(LayersDoneError):
            self._run(step, layers)

    def _run(self, step: DeviceStep, layers: int, **options: Any) -> Any:  # noqa: ANN401
        """The model's output without its output layer."""
        move_rows(self.storage.kv, step.moves, step.moved)
        found: dict[int, Tensor] | None = None if self.queries is None else {}
        hooked = HookStep(
            self.storage, self._decoder.places, step.plan, step.rows, _attend, store, layers,
            found,
        )  # fmt: skip
        with self._used(step.rows), self._scanned(step):
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

    def _scanned(self, step: DeviceStep) -> AbstractContextManager[None]:
        """Inside the block the recurrent layers score the step."""
        if not isinstance(self.storage, LazyStateStorage):
            return nullcontext()
        return self._decoder.recurrent.used(CapturedStates(self.storage, step))

    @contextmanager
    def _used(self, rows: Tensor | None) -> Iterator[None]:
        """The model with our attention and replacements, for nodes with these cache rows."""
        token = rows_of_step.set(rows)
        try:
            with ExitStack() as stack:
                stack.enter_context(self._decoder.hooked.used())
                stack.enter_context(self._replacements.used())
                # What modules remember must stay trainable.
                stack.enter_context(torch.inference_mode(mode=False))
                stack.enter_context(torch.no_grad())
                stack.enter_context(Deferral())
                yield
        finally:
            rows_of_step.reset(token)


def _attend(query: Tensor, keys: Tensor, values: Tensor, plan: Any, **options: Any) -> Tensor:  # noqa: ANN401
    return attend(query.contiguous(), keys, values, plan, **options)
