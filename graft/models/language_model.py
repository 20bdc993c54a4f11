"""A network and its KV cache: open a sequence, score draft trees on top of it, commit a path.

A forward (`forward_panels`, `forward`, `forward_graphed`, `forward_hook`) writes the nodes' keys
and values behind the committed rows and returns logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from graft.errors import ContextLengthError, InputError
from graft.kernels.tree_layout import TreeLayout, spread
from graft.models.arena import BLOCK, STATES_BYTES, Arena, Extent, Storage
from graft.models.prefix_cache import PrefixCache
from graft.models.view import View
from graft.tree.draft_tree import DraftTree, chain, root_only

TREES = (1, 2, 4, 8, 16, 32, 64)  # nodes of trees that `warm_up` prepares batches of
CONTEXT = 320  # tokens in front of them: short contexts have steps of their own shapes
CHUNKS = {"cpu": 256, "cuda": 2048}  # prompt tokens prefilled in one step ...
UNLIMITED = 1 << 30
LARGE_CHUNK, LARGE_GPU = 8192, 70 << 30  # ... and on a GPU with so many bytes, as in vLLM


def prefill_chunk_size(device: torch.device) -> int:
    """Prompt tokens prefilled in one step on a device."""
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        return LARGE_CHUNK if memory >= LARGE_GPU else CHUNKS["cuda"]
    return CHUNKS.get(device.type, CHUNKS["cpu"])


class Forward(Protocol):
    """A network with its cache rows.

    An `asynchronous` forward returns while its device still computes. Its logits are valid until
    the next run, which may be launched before this one is done: the forward keeps apart the buffers
    that both use.
    """

    storage: Storage
    asynchronous: bool
    exact: bool  # whether a node's logits follow from its own path alone, bit for bit
    sizes: Sequence[int]  # of steps that need preparation, such as captured graphs
    feature_layers: frozenset[int]  # set before a run whose `features` are needed

    def run(self, tokens: np.ndarray | Tensor, layout: TreeLayout, outputs: np.ndarray) -> Tensor:
        """Write the nodes' keys and values, return logits [M, V] float32 of the nodes `outputs`.
        An asynchronous forward also takes tokens on its device."""

    def run_first(self, tokens: np.ndarray, layout: TreeLayout, layers: int) -> None:
        """Write the nodes' keys and values of the first `layers` alone; no logits, no features."""

    def frequencies(self) -> list[Tensor]:
        """The inverse frequencies [n] by which the network's keys may be rotated."""

    def features(self, nodes: np.ndarray, layers: Sequence[int]) -> Tensor:
        """[n, len(layers) * E]: hidden states of these nodes of the last run, side by side: the
        inputs of these layers, for -1 those of the output layer. Valid as long as the logits
        are."""

    def queries(self, tokens: np.ndarray, layout: TreeLayout) -> Tensor:
        """Write the nodes' keys and values; return queries [L, H, N, D], rotated and scaled: their
        products with cached keys are the inputs of attention's softmax."""

    def weighs_plainly(self, layer: int, tokens: int) -> bool:
        """Whether a layer's attention over so many tokens is the softmax of these products alone:
        no cap, no sinks, no window."""

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., E] for token ids of any shape on the model's device."""

    def output_weight(self, tokens: Tensor | None) -> Tensor:
        """[n, E]: the rows of the output layer for these ids, None for all."""


@dataclass(frozen=True, slots=True)
class TargetStep:
    """One sequence's part of a step, for drafters. `tokens` are those the step committed: none for
    a prefill chunk that is not the last.

    `nodes` of the step became the last committed rows of `extent`. `LanguageModel.features` returns
    their features until the next step is launched.
    """

    sequence: int
    tokens: list[int]
    nodes: list[int] = field(default_factory=list)
    extent: Extent | None = None


class LanguageModel:
    """A target or drafter and the arena its sequences live in."""

    def __init__(
        self,
        forward: Forward,
        *,
        vocabulary: int,
        context_length: int,
        max_rows: int | None = None,
        chunk: int = CHUNKS["cpu"],
    ) -> None:
        self.forward, self.chunk = forward, chunk
        self.vocabulary = vocabulary
        self.context_length = context_length
        self.arena = Arena(forward.storage, max_rows=max_rows)
        self.prefixes = PrefixCache(self.arena)
        self.steps = 0  # forward passes made

    @property
    def asynchronous(self) -> bool:
        """See Forward."""
        return self.forward.asynchronous

    def open(self, tokens: int, prefix: Extent | None = None, shared: int | None = None) -> Extent:
        """Open a sequence for about `tokens` on top of the first `shared` tokens of `prefix`."""
        return self.arena.reserve(tokens, prefix, shared)

    def fork(self, extent: Extent, length: int, rows: int) -> Extent:
        """A sequence that begins with `extent`'s first `length` tokens and has `rows` free rows.

        Whole blocks are shared and the rest is copied, so attention sums in the same order. A
        recurrent state belongs to its sequence, so the last row is copied.
        """
        shared = (length - self.has_states) // BLOCK * BLOCK
        forked = self.prefixes.reserve(length - shared + rows, extent if shared else None, shared)
        own = forked.start + np.arange(length - shared)
        self.arena.storage.move(extent.rows[shared:length], own)
        forked.length, forked.skipped = length - shared, extent.skipped
        return forked

    def look(self, base: Extent, rows: int, chosen: Extent | None = None) -> View:
        """A view of a sequence's committed rows with `rows` free rows; `View.look` selects what it
        attends to. It is scored, committed to and closed like a sequence, before its base is."""
        self.require_rows_only("drafts from a part of the context")
        return self.prefixes.place(View(0, rows, base=base, chosen=chosen))

    @property
    def has_states(self) -> bool:
        """Whether sequences have recurrent states beside their rows."""
        return self.arena.storage.state_bytes > 0

    def require_rows_only(self, use: str) -> None:
        """InputError for a use that needs rows to be all that a sequence depends on."""
        if self.has_states:
            raise InputError(f"a model with recurrent layers does not allow {use}")

    def close(self, extent: Extent) -> None:
        """Free the sequence's rows."""
        self.arena.release(extent)

    def score(
        self,
        extents: Sequence[Extent],
        trees: Sequence[DraftTree],
        *,
        last_only: Sequence[bool] | None = None,
    ) -> list[Tensor]:
        """One forward over all nodes of all trees; logits [n, V] for each tree.

        Trees marked in `last_only` (prefill chunks) get logits [1, V] of their last node.
        """
        logits, counts = self.score_all(extents, trees, last_only=last_only)
        return list(logits.split(counts))

    def score_all(
        self,
        extents: Sequence[Extent],
        trees: Sequence[DraftTree],
        *,
        last_only: Sequence[bool] | None = None,
    ) -> tuple[Tensor, list[int]]:
        """`score` as one tensor [M, V], and the number of its rows that belong to each tree."""
        sizes = [len(tree) for tree in trees]
        flags = last_only or [False] * len(trees)
        counts = [1 if last else size for size, last in zip(sizes, flags, strict=True)]
        outputs = np.arange(sum(sizes))
        if any(flags):
            ends = accumulate(sizes)
            spans = zip(ends, counts, strict=True)
            outputs = np.concatenate([outputs[end - count : end] for end, count in spans])
        return self.run(extents, trees, outputs), counts

    def score_drawn(self, extents: Sequence[Extent], tokens: Tensor) -> Tensor:
        """Logits [M, V] after one more token of every sequence; `tokens` lie on the device of an
        asynchronous model and need not be known to the host."""
        _, layout = self._laid_out(extents, [root_only(0)] * len(extents))
        return self.forward.run(tokens, layout, np.arange(len(extents)))

    def score_ahead(self, extents: Sequence[Extent], tokens: Tensor) -> Tensor:
        """`score_drawn` after a step of one node per sequence that is not committed yet; the
        extents must have free rows for both."""
        self.commit_all([(extent, [0]) for extent in extents])
        try:
            return self.score_drawn(extents, tokens)
        finally:
            for extent in extents:
                self.arena.truncate(extent, extent.length - 1)

    def max_nodes(self, sequences: int) -> int:
        """Draft nodes that a tree of one of so many sequences may have: each recurrent state takes
        memory until the next step."""
        size = self.arena.storage.state_bytes * sequences
        return max(STATES_BYTES // size - 1, 1) if size else UNLIMITED

    def has_room(self, extent: Extent, tokens: int) -> bool:
        """Whether so many more tokens fit without allocating rows."""
        fits = extent.length + tokens <= extent.capacity
        return fits and extent.position + tokens <= self.context_length

    def keep_features(self, layers: Sequence[int]) -> None:
        """Keep the features of these layers too from now on; see Forward."""
        if not self.forward.feature_layers.issuperset(layers):
            self.forward.feature_layers |= frozenset(layers)

    def features(self, nodes: Sequence[int], layers: Sequence[int] = (-1,)) -> Tensor:
        """Features of nodes of the last step, numbered over all its trees; see Forward."""
        return self.forward.features(np.asarray(nodes, np.int64), layers)

    def queries(self, extent: Extent, tokens: Sequence[int]) -> Tensor:
        """Queries [L, H, n, D] of `tokens` behind an extent's rows in every layer; see Forward.

        For attention weights (`kernels/attention_weights.py`), caps and sinks left aside. It takes
        a step of its own over tokens that were prefilled before: use a view (`look`) of the rows
        before them. Nothing is committed.
        """
        return self.forward.queries(*self._laid_out([extent], [chain(tokens)]))

    def commit(self, extent: Extent, path: list[int]) -> None:
        """The nodes of `path` (root first, of the last scored tree) become final."""
        self.arena.commit([(extent, path)])

    def commit_all(self, paths: Sequence[tuple[Extent, list[int]]]) -> None:
        """`commit` for several sequences at once."""
        self.arena.commit(paths)

    def warm_up(self, sequences: int = 1) -> None:
        """Prepare the forward for all its step sizes: of one sequence, and of up to `sequences`
        with trees of several sizes."""
        max_rows = self.arena.max_rows
        limit = self.context_length if max_rows is None else min(self.context_length, max_rows)
        sizes = [each for each in self.forward.sizes if each < limit]
        if not sizes:
            return
        context = CONTEXT if max(sizes) + CONTEXT <= limit else 0
        needed = sequences * context + max(sizes) + (sequences - 1) * max(TREES)
        if max_rows is not None and needed > max_rows:
            sequences = 1
        extents = [self.open(context + (max(TREES) if i else max(sizes))) for i in range(sequences)]
        try:
            for extent in extents if context else ():
                self.prefill_chunk(extent, [0] * context)
            for smallest, size in zip((1, *(each + 1 for each in sizes)), sizes, strict=False):
                for nodes in {smallest, size} if size <= max(TREES) else {size}:
                    self.score(extents[:1], [chain([0] * nodes)], last_only=[True])
                for nodes in TREES:
                    count = size // nodes
                    if 1 < count <= sequences:
                        self.score(extents[:count], [chain([0] * nodes)] * count)
        finally:
            for extent in extents:
                self.close(extent)

    def prefill(self, extent: Extent, tokens: Sequence[int]) -> Tensor:
        """Prefill tokens in chunks; the logits [V] after the last of them."""
        logits = None
        for start in range(0, len(tokens), self.chunk):
            logits = self.prefill_chunk(extent, tokens[start : start + self.chunk])
        assert logits is not None, "nothing to prefill"
        return logits

    def prefill_chunk(self, extent: Extent, tokens: Sequence[int]) -> Tensor:
        """Prefill tokens in one step; logits [V] after the last of them."""
        (logits,) = self.score([extent], [chain(tokens)], last_only=[True])
        self.commit(extent, list(range(len(tokens))))
        return logits[0]

    def run(
        self, extents: Sequence[Extent], trees: Sequence[DraftTree], outputs: np.ndarray
    ) -> Tensor:
        """One forward over all nodes of all trees; logits [M, V] of the nodes `outputs`."""
        return self.forward.run(*self._laid_out(extents, trees), outputs)

    def run_first(self, extents: Sequence[Extent], trees: Sequence[DraftTree], layers: int) -> None:
        """Write the nodes' keys and values of the first `layers` alone."""
        self.forward.run_first(*self._laid_out(extents, trees), layers)

    def _laid_out(
        self, extents: Sequence[Extent], trees: Sequence[DraftTree]
    ) -> tuple[np.ndarray, TreeLayout]:
        """Tokens and layout of the next step, whose rows are allocated."""
        for extent, tree in zip(extents, trees, strict=True):
            rows = extent.length + len(tree)
            reach = extent.shared + extent.skipped + rows
            if reach > self.context_length:
                self._check(reach, tree)
            if rows > extent.capacity:
                self.prefixes.ensure(extent, rows)
        tokens = np.concatenate([tree.tokens for tree in trees])
        self.steps += 1
        return tokens, lay_out(extents, trees)

    def _check(self, tokens: int, tree: DraftTree) -> None:
        """Refuse a step beyond the context; siblings share a position."""
        if tokens > self.context_length + tree_slack(tree):
            raise ContextLengthError(
                f"{tokens} tokens do not fit the model's context of "
                f"{self.context_length}; shorten the prompt or lower max_tokens"
            )


def tree_slack(tree: DraftTree) -> int:
    """Nodes that share a position with others and so need rows but no further position."""
    return len(tree) - 1 - int(tree.depths[-1])


def lay_out(extents: Sequence[Extent], trees: Sequence[DraftTree]) -> TreeLayout:
    """Flat packing: the trees' nodes side by side, each behind its sequence's committed rows."""
    counts = [len(tree) for tree in trees]
    first = np.array([*accumulate(counts, initial=0)])
    rows = np.array([extent.start + extent.length for extent in extents])
    positions = np.array([extent.position for extent in extents])
    if len(counts) == first[-1]:  # roots alone
        parents = np.full(len(counts), -1)
    else:
        depths = _joined([tree.depths for tree in trees])
        rows, positions = spread(first, rows, positions, depths)
        parents = _joined([tree.parents for tree in trees]).astype(np.int64)
    segments, starts = zip(*(extent.placed for extent in extents), strict=True)
    gaps = any(each is not None for each in starts)
    assert not gaps or None not in starts, "views and sequences need separate steps"
    return TreeLayout(
        first, list(segments), rows, positions, parents, list(starts) if gaps else None
    )


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DTYPES["fp8"] = torch.float8_e4m3fn  # of a KV cache


def dtype_of(name: str) -> torch.dtype:
    """torch's dtype of a short name, as options use them."""
    return _DTYPES[name]


def name_of(dtype: torch.dtype) -> str:
    """The short name of torch's dtype."""
    return next(name for name, each in _DTYPES.items() if each == dtype)
