"""Batch-invariant forwards: a node's logits have the same bits whatever else is in the step.

A step runs in slabs of exactly `slab` nodes, one after the other through the whole network; the
last is padded with nodes in rows of their own. So every product, norm and sum has the same shape
in every step. Ancestors come first in level order: their keys are in the cache when a later slab
needs them. Attention is `tree_attention_invariant`. `check_invariant` verifies the bits at load.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graft.errors import UnsupportedModelError
from graft.kernels.attention_parts import Part
from graft.kernels.tree_attention_invariant import SeenRows, see
from graft.kernels.tree_layout import TreeLayout
from graft.models.arena import Storage
from graft.models.language_model import Forward, LanguageModel
from graft.models.probe import probe_paths
from graft.models.storage import Stateless
from graft.tree.draft_tree import DraftTree, chain, from_paths

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Nodes of a slab: more waste work on short steps, fewer need several slabs for a tree. Blocks of
# keys at once: more waste work on short contexts, fewer need many launches for a long one.
SLABS = {"cpu": 16, "cuda": 64}
NEIGHBOUR = 61  # nodes in front of a tree, which then lies in two slabs of any size
GROUPS = {"cpu": 1, "cuda": 4}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class SpareRows(Stateless):
    """A storage whose last rows are reserved for padding."""

    def __init__(self, storage: Storage, spare: int) -> None:
        self.inner, self.spare = storage, spare
        self.inner.resize(spare)

    @property
    def rows(self) -> int:
        """Rows without the reserved ones."""
        return self.inner.rows - self.spare

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return self.inner.row_bytes

    def resize(self, rows: int) -> None:
        """See Storage."""
        before = np.arange(self.rows, self.inner.rows)
        self.inner.write(before, torch.zeros_like(self.inner.read(before)))
        self.inner.resize(rows + self.spare)

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """See Storage."""
        self.inner.move(source, target)

    def read(self, rows: np.ndarray) -> Tensor:
        """See Storage."""
        return self.inner.read(rows)

    def write(self, rows: np.ndarray, content: Tensor) -> None:
        """See Storage."""
        self.inner.write(rows, content)

    def gather(self, source: Tensor, target: np.ndarray) -> None:
        """See Storage."""
        self.inner.gather(source, target)

    def keys_of(self, layer: int, segments: Sequence[tuple[int, int]]) -> Tensor:
        """See Storage."""
        return self.inner.keys_of(layer, segments)

    def attend(
        self, layers: int, query: Tensor, segments: Sequence[tuple[int, int]], scale: float
    ) -> Part:
        """See Storage."""
        return self.inner.attend(layers, query, segments, scale)


class InvariantForward:
    """Runs steps in slabs, by a forward with the invariant attention."""

    asynchronous, exact = False, True
    sizes = ()

    def __init__(
        self,
        forward: Forward,
        *,
        device: torch.device,
        slab: int | None = None,
        group: int | None = None,
    ) -> None:
        self.forward, self.device = forward, device
        self.slab, self.group = slab or SLABS[device.type], group or GROUPS[device.type]
        self.storage = SpareRows(forward.storage, self.slab)
        self._kept: dict[int, Tensor] = {}

    @property
    def feature_layers(self) -> frozenset[int]:
        """See Forward."""
        return self.forward.feature_layers

    @feature_layers.setter
    def feature_layers(self, layers: frozenset[int]) -> None:
        self.forward.feature_layers = layers

    def features(self, nodes: np.ndarray, layers: Sequence[int]) -> Tensor:
        """See Forward."""
        rows = torch.from_numpy(nodes).to(self.device)
        return torch.cat([self._kept[layer][rows] for layer in layers], -1)

    def queries(self, tokens: np.ndarray, layout: TreeLayout) -> Tensor:
        """See Forward."""
        slabs = self._slabs(tokens, layout)
        parts = [self.forward.queries(padded, seen)[:, :, : len(n)] for n, padded, seen in slabs]
        return torch.cat(parts, 2)

    def weighs_plainly(self, layer: int, tokens: int) -> bool:
        """See Forward."""
        return self.forward.weighs_plainly(layer, tokens)

    def embed(self, tokens: Tensor) -> Tensor:
        """See Forward."""
        return self.forward.embed(tokens)

    def output_weight(self, tokens: Tensor | None) -> Tensor:
        """See Forward."""
        return self.forward.output_weight(tokens)

    def run(self, tokens: np.ndarray, layout: TreeLayout, outputs: np.ndarray) -> Tensor:
        """Write the nodes' keys and values, return logits [M, V] float32 of the nodes `outputs`."""
        every, none = np.arange(self.slab), np.arange(0)
        found, kept = [], {layer: [] for layer in self.feature_layers}
        for nodes, padded, seen in self._slabs(tokens, layout):
            inside = outputs[(outputs >= nodes[0]) & (outputs <= nodes[-1])] - nodes[0]
            logits = self.forward.run(padded, seen, every if len(inside) else none)
            if len(inside):
                found.append(logits[torch.from_numpy(inside).to(logits.device)])
            for layer, parts in kept.items():
                parts.append(self.forward.features(every[: len(nodes)], [layer]))
        self._kept = {layer: torch.cat(parts) for layer, parts in kept.items()}
        return torch.cat(found)

    def run_first(self, tokens: np.ndarray, layout: TreeLayout, layers: int) -> None:
        """See Forward."""
        for _, padded, seen in self._slabs(tokens, layout):
            self.forward.run_first(padded, seen, layers)

    def frequencies(self) -> list[Tensor]:
        """See Forward."""
        return self.forward.frequencies()

    def _slabs(
        self, tokens: np.ndarray, layout: TreeLayout
    ) -> Iterator[tuple[np.ndarray, np.ndarray, SeenRows]]:
        """The nodes of each slab, its tokens and its visible rows, the last two padded."""
        for start in range(0, len(tokens), self.slab):
            nodes = np.arange(start, min(start + self.slab, len(tokens)))
            missing = self.slab - len(nodes)
            seen = see(layout, nodes, self.device, self.group)
            yield nodes, np.pad(tokens[nodes], (0, missing)), self._fill(seen, missing)

    def _fill(self, seen: SeenRows, missing: int) -> SeenRows:
        """Pad with nodes at position 0 that attend to themselves alone."""
        if not missing:
            return seen
        rows = self.storage.rows + np.arange(missing)
        own = torch.from_numpy(rows.astype(np.int32)).to(self.device)[:, None]
        return SeenRows(
            np.concatenate([seen.rows, rows]),
            np.pad(seen.positions, (0, missing)),
            torch.cat([seen.seen, own.expand(-1, seen.seen.shape[1])]),
            torch.cat([seen.places, torch.zeros_like(own).expand(-1, seen.seen.shape[1])]),
            torch.cat([seen.last, torch.zeros_like(own, dtype=seen.last.dtype)]),
            seen.group,
        )


def refuse_experts(config: "PretrainedConfig", name: str) -> None:
    """Raise for a mixture of experts: the rows of its products depend on the routing."""
    text = config.get_text_config()
    if any((getattr(text, each, None) or 1) > 1 for each in _EXPERTS):
        raise UnsupportedModelError(
            f"{name} cannot be run invariant: its experts get another number of rows at every "
            "step; leave --invariant out"
        )


def check_invariant(forward: Forward, *, vocabulary: int, name: str) -> None:
    """Raise unless every path of a tree has the same bits however it is scored."""
    model = LanguageModel(forward, vocabulary=vocabulary, context_length=1 << 20)
    prompt, paths = probe_paths(vocabulary)
    tree = from_paths(paths[0][0], [path[1:] for path in paths])
    expected = _token_by_token(model, prompt, tree)
    others = _as_a_tree(model, prompt, tree, neighbour=(4 * prompt)[:NEIGHBOUR])
    if not all(torch.equal(expected, other) for other in others):
        worst = max(float((expected - other).abs().max()) for other in others)
        raise UnsupportedModelError(
            f"{name} cannot be run invariant here: what else is in a step changes its logits by "
            f"{worst:.3g}; leave --invariant out"
        )


def _token_by_token(model: LanguageModel, prompt: list[int], tree: DraftTree) -> Tensor:
    """Logits of all nodes: the prompt prefilled token by token, then each path on top of it."""
    logits, ancestors = {}, tree.ancestors()
    prefix = model.open(len(prompt))
    for token in prompt:
        model.prefill_chunk(prefix, [token])
    for leaf in set(range(len(tree))) - set(tree.parents.tolist()):
        extent = model.open(len(tree), prefix)
        for node in np.flatnonzero(ancestors[leaf]).tolist():
            logits[node] = model.prefill_chunk(extent, [int(tree.tokens[node])])
        model.close(extent)
    model.close(prefix)
    return torch.stack([logits[node] for node in range(len(tree))])


def _as_a_tree(
    model: LanguageModel, prompt: list[int], tree: DraftTree, neighbour: list[int]
) -> tuple[Tensor, Tensor]:
    """Logits of the tree alone, and behind a neighbour that shifts it and cuts it in two slabs."""
    first, second = (model.open(4 * len(prompt)) for _ in range(2))
    model.prefill(first, 2 * prompt)
    model.prefill(second, prompt)
    alone = model.score([second], [tree])[0]
    beside = model.score([first, second], [chain(neighbour), tree])[1]
    model.close(first)
    model.close(second)
    return alone, beside
