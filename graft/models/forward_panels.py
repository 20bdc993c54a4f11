"""The lean forward of Llama-shaped decoders on the CPU: one compiled call per step.

All threads compute each layer together; each owns a share of every product's columns. Rows mix
in attention only, and every sum runs in a fixed order, so a node's logits have the same bits
whatever else is in the step (see `panels.py`).
"""

import os
from collections.abc import Sequence
from itertools import pairwise

import numba
import numpy as np
import torch
from numba import njit, prange

from graft.kernels.elementwise import gate, rms_norm, rotate
from graft.kernels.panels import COMPUTING, LANES, narrow
from graft.kernels.products import multiply_columns, multiply_share, panel_count, prepare_rows
from graft.kernels.tree_attention_panels import attend_split, merge_splits, plan_splits
from graft.kernels.tree_layout import TreeLayout
from graft.machine import SHORT_SPINS
from graft.models.llama_shape import LlamaShape
from graft.models.panel_weights import PanelWeights
from graft.models.storage import PanelStorage

_MIN_SHARED_WEIGHTS = 1 << 20  # fewer are multiplied before a second thread wakes up


class PanelForward:
    """Runs a Llama-shaped decoder over packed weights; see LanguageModel for the contract."""

    asynchronous, exact = False, True
    sizes = ()

    def __init__(self, shape: LlamaShape, weights: PanelWeights) -> None:
        self.shape, self.weights = shape, weights
        self.storage = PanelStorage(shape.layers, shape.kv_heads, shape.head_size)
        self._partial = Scratch()
        self.feature_layers: frozenset[int] = frozenset()
        self._kept: dict[int, np.ndarray] = {}  # by layer, -1 for the last one's output
        threads = use_threads()
        self.threads = threads if weights.inner_weights >= _MIN_SHARED_WEIGHTS else 1

    def store_kv(self, dtype: torch.dtype) -> None:
        """Begin an empty KV cache of another dtype; keys and values are rounded as they are
        stored."""
        shape = self.shape
        self.storage = PanelStorage(shape.layers, shape.kv_heads, shape.head_size, dtype)

    def run(self, tokens: np.ndarray, layout: TreeLayout, outputs: np.ndarray) -> torch.Tensor:
        """Write the nodes' keys and values, return logits [M, V] of the nodes `outputs`."""
        weights, self._kept = self.weights, {}
        scratch = room_for_queries(self.shape, len(tokens))
        hidden = self._through_layers(tokens, layout, scratch, kept=self._kept)
        columns = -(-self.shape.vocabulary // LANES) * LANES
        logits = np.empty((len(outputs), columns), np.float32)
        wanted, epsilon = hidden[outputs], np.float32(self.shape.epsilon)
        with COMPUTING:
            project(wanted, weights.final_norm, epsilon, weights.head, logits, self.threads)
        if self.feature_layers:
            self._kept[-1] = hidden
        return torch.from_numpy(logits)[:, : self.shape.vocabulary]

    def queries(self, tokens: np.ndarray, layout: TreeLayout) -> torch.Tensor:
        """See Forward."""
        shape = self.shape
        found = room_for_queries(shape, len(tokens), layers=shape.layers)
        self._through_layers(tokens, layout, found)
        apart = torch.from_numpy(found).transpose(2, 3) * shape.scale  # [L, K, G, N, D]
        return apart.flatten(1, 2)

    def run_first(self, tokens: np.ndarray, layout: TreeLayout, layers: int) -> None:
        """See Forward."""
        self._through_layers(tokens, layout, room_for_queries(self.shape, len(tokens)), layers)

    def frequencies(self) -> list[torch.Tensor]:
        """See Forward."""
        return self.shape.frequencies()

    def _through_layers(
        self,
        tokens: np.ndarray,
        layout: TreeLayout,
        queries: np.ndarray,
        layers: int | None = None,
        kept: dict[int, np.ndarray] | None = None,
    ) -> np.ndarray:
        """[N, E] behind the first `layers`, or all of them; inputs of the feature layers go to
        `kept`."""
        shape, plan, hidden = self.shape, plan_splits(layout), self._embed(tokens)
        cosine, sine = shape.rotary(layout.positions)
        sizes = np.array([shape.heads, shape.kv_heads, shape.head_size], np.int64)
        numbers = np.array([shape.epsilon, shape.scale], np.float32)
        splits = int(plan.blocks[:, 3].max())
        partial = self._partial.take(splits, shape, len(tokens))
        stops = (
            sorted(each for each in self.feature_layers if each >= 0) if kept is not None else []
        )
        bounds = [0, *stops, self.shape.layers if layers is None else layers]
        for first, last in pairwise(bounds):
            with COMPUTING:
                run_layers(
                    hidden,
                    self.weights.layers(slice(first, last)),
                    (self.storage.keys[first:last], self.storage.values[first:last]),
                    (layout.rows, layout.positions, layout.ancestors, cosine, sine),
                    (plan.tasks, plan.blocks),
                    (sizes, numbers),
                    (queries, *partial),
                    self.threads,
                )
            if kept is not None and last in stops:
                kept[last] = hidden.copy()
        return hidden

    def features(self, nodes: np.ndarray, layers: Sequence[int]) -> torch.Tensor:
        """See Forward."""
        norms = {-1: self.weights.final_norm}
        epsilon, none = np.float32(self.shape.epsilon), self.weights.final_norm[:0]
        found = [
            norm_rows(self._kept[each][nodes], norms.get(each, none), epsilon) for each in layers
        ]
        return torch.from_numpy(np.concatenate(found, 1))

    def weighs_plainly(self, layer: int, tokens: int) -> bool:
        """See Forward."""
        window = self.weights.windows[layer]
        return not window or tokens <= int(window)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """See Forward."""
        return torch.from_numpy(self._embed(tokens.numpy()))

    def output_weight(self, tokens: torch.Tensor | None) -> torch.Tensor:
        """See Forward."""
        known = np.arange(self.shape.vocabulary) if tokens is None else tokens.numpy()
        return self.weights.output_rows(known)

    def _embed(self, tokens: np.ndarray) -> np.ndarray:
        return self.weights.embedding_rows(tokens)


def use_threads() -> int:
    """Give the compiled kernels as many threads as torch has; how many that is.

    The first call starts numba's threads and loads their OpenMP library, which reads the
    environment once; the environment is restored. Where torch brings the same library, it has read
    the environment when torch was imported: the `graft` command sets the variable before that.
    """
    name, value = SHORT_SPINS
    added = name not in os.environ
    if added:
        os.environ[name] = value
    try:
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
        return numba.get_num_threads()
    finally:
        if added:
            del os.environ[name]


def room_for_queries(shape: LlamaShape, nodes: int, *, layers: int = 1) -> np.ndarray:
    """An empty [layers, K, N, G, D] for the queries of every layer, or of one at a time."""
    groups = shape.heads // shape.kv_heads
    return np.empty((layers, shape.kv_heads, nodes, groups, shape.head_size), np.float32)


class Scratch:
    """Buffers of partial attention, reused between steps."""

    def __init__(self) -> None:
        self._floats = np.empty(0, np.float32)

    def take(
        self, splits: int, shape: LlamaShape, nodes: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Maximum, total [S, K, N * G] and mixed [S, K, N * G, D] of so many splits."""
        rows = nodes * (shape.heads // shape.kv_heads)
        count = splits * shape.kv_heads * rows
        if len(self._floats) < count * (shape.head_size + 2):
            self._floats = np.empty(count * (shape.head_size + 2) * 5 // 4, np.float32)
        flat, lead = self._floats, (splits, shape.kv_heads, rows)
        return (
            flat[:count].reshape(lead),
            flat[count : 2 * count].reshape(lead),
            flat[2 * count : count * (2 + shape.head_size)].reshape(*lead, shape.head_size),
        )


@njit(cache=True, boundscheck=False)
def norm_rows(hidden, weight, epsilon):  # noqa: ANN001, ANN201
    """Normed rows; the rows themselves where there is no weight. Every thread computes all of them:
    sharing would cost a barrier."""
    if not weight.shape[0]:
        return hidden
    normed = np.empty_like(hidden)
    for i in range(hidden.shape[0]):
        rms_norm(hidden[i], weight, epsilon, normed[i])
    return normed


@njit(parallel=True, cache=True, boundscheck=False, nogil=True)
def project(hidden, norm, epsilon, head, logits, threads):  # noqa: ANN001, ANN201
    """logits = norm(hidden) @ head, the columns shared between the threads."""
    for t in prange(threads):
        unscaled = np.empty(0, np.float32)
        multiply_share(norm_rows(hidden, norm, epsilon), head, unscaled, t, threads, logits)


@njit(parallel=True, cache=True, boundscheck=False, nogil=True)
def linear(x, weight, scale, y, threads):  # noqa: ANN001, ANN201
    """y = x @ weight * scale, the columns shared between the threads."""
    for t in prange(threads):
        multiply_share(x, weight, scale, t, threads, y)


@njit(cache=True, boundscheck=False)
def place_heads(i, qkv, bias, norms, sizes, epsilon, where, query, cache, layer):  # noqa: ANN001, ANN201, PLR0913
    """Bias, norm and rotate node i's heads; queries go to `query`, keys and values to the cache."""
    rows, _, _, cosine, sine = where
    heads, kv_heads, size = sizes
    keys, values = cache
    groups = heads // kv_heads
    if bias.shape[0]:
        for c in range(qkv.shape[0]):
            qkv[c] += bias[c]
    turned = np.empty(size, np.float32)
    panel, lane = rows[i] // LANES, rows[i] % LANES
    for h in range(heads + kv_heads):
        head = qkv[h * size : (h + 1) * size]
        if norms.shape[0]:
            rms_norm(head, norms[0 if h < heads else 1], epsilon, head)
        if h < heads:
            rotate(head, cosine[i], sine[i], query[h // groups, i, h % groups])
        else:
            rotate(head, cosine[i], sine[i], turned)
            for d in range(size):
                keys[layer, h - heads, panel, d, lane] = narrow(turned[d], keys)
    for h in range(kv_heads):
        first = (heads + kv_heads + h) * size
        for d in range(size):
            values[layer, h, d // LANES, rows[i], d % LANES] = narrow(qkv[first + d], values)


@njit(parallel=True, cache=True, boundscheck=False, nogil=True)
def run_layers(hidden, weights, cache, where, plan, constants, scratch, threads):  # noqa: ANN001, ANN201, C901, PLR0913, PLR0915  one phase after the other
    """Change hidden [N, E] in place from embeddings to the last layer's output.

    scratch = queries (`room_for_queries`), and what `Scratch` gives."""
    (attention_norm, qkv_weight, qkv_bias, head_norms,
     output, mlp_norm, gate_up, down, windows, scales) = weights  # fmt: skip
    qkv_scale, output_scale, gate_up_scale, down_scale = scales
    tasks, blocks = plan
    sizes, numbers = constants
    _, positions, ancestors, _, _ = where
    nodes = hidden.shape[0]
    heads, kv_heads, size = sizes
    epsilon, scale = numbers
    half = panel_count(gate_up[0]) // 2
    qkv = np.empty((nodes, panel_count(qkv_weight[0]) * LANES), np.float32)
    attended = np.empty((nodes, heads * size), np.float32)
    paired = np.empty((nodes, 2 * half * LANES), np.float32)
    inner = np.empty((nodes, half * LANES), np.float32)
    added = np.empty((nodes, panel_count(output[0]) * LANES), np.float32)
    queries, partial = scratch[0], scratch[1:]
    for layer in range(attention_norm.shape[0]):
        query = queries[layer % queries.shape[0]]
        for t in prange(threads):
            normed = norm_rows(hidden, attention_norm[layer], epsilon)
            multiply_share(normed, qkv_weight[layer], qkv_scale[layer], t, threads, qkv)
        for i in prange(nodes):
            place_heads(
                np.int64(i), qkv[i], qkv_bias[layer], head_norms[layer], sizes, epsilon,
                where, query, cache, layer,
            )  # fmt: skip
        for t in prange(threads):  # interleaved: the long tasks of a prefill are neighbours
            for task in range(t, tasks.shape[0] * kv_heads, threads):
                place = task // kv_heads
                split = place - _first_task(blocks, place)
                result = (partial[0][split], partial[1][split], partial[2][split])
                sight = (ancestors, positions, windows[layer])
                head = task % kv_heads
                attend_split(layer, head, tasks[place], query, cache, sight, scale, result)
        for t in prange(threads):
            target = attended.reshape(nodes, heads, size)
            for task in range(t, blocks.shape[0] * kv_heads, threads):
                merge_splits(task % kv_heads, blocks[task // kv_heads], partial, target)
        for t in prange(threads):
            weight, units = output[layer], output_scale[layer]
            first, last = multiply_share(attended, weight, units, t, threads, added)
            add_columns(hidden, added, first * LANES, last * LANES)
        for t in prange(threads):
            weight, units = gate_up[layer], gate_up_scale[layer]
            rows = prepare_rows(norm_rows(hidden, mlp_norm[layer], epsilon), weight)
            first, last = half * t // threads, half * (t + 1) // threads
            multiply_columns(rows, weight, units, first, last, paired)
            multiply_columns(rows, weight, units, half + first, half + last, paired)
            for i in range(nodes):
                gate(paired[i], first * LANES, last * LANES, inner[i])
        for t in prange(threads):
            weight, units = down[layer], down_scale[layer]
            first, last = multiply_share(inner, weight, units, t, threads, added)
            add_columns(hidden, added, first * LANES, last * LANES)


@njit(cache=True, boundscheck=False)
def _first_task(blocks, task):  # noqa: ANN001, ANN202
    """First task of the block that `task` belongs to."""
    first = 0
    for q in range(blocks.shape[0]):
        if blocks[q, 2] <= task:
            first = blocks[q, 2]
    return first


@njit(cache=True, boundscheck=False)
def add_columns(hidden, added, first, last):  # noqa: ANN001, ANN201
    """hidden += added in columns first..last."""
    for i in range(hidden.shape[0]):
        for c in range(first, min(last, hidden.shape[1])):
            hidden[i, c] += added[i, c]
