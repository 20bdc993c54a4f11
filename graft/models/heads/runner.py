"""Runs a draft head: its KV cache of every sequence, and drafts on top of it.

A head has one layer, so a token's keys and values depend on the token alone (EAGLE's also on the
target's feature before it): committed tokens need no attention, draft tokens do. A draft computes
the root's output first, then level after level for all sequences at once. Keys and values of draft
tokens live as long as the draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graft.kernels.attention_parts import Part, attend_rows, merge_parts
from graft.models.arena import ALIGN, Arena, Extent, Storage
from graft.models.heads.files import Head
from graft.models.heads.layers import Rotary, SelfAttention, linear_of
from graft.models.heads.panel_linear import PanelLinear, pack_linears
from graft.models.language_model import LanguageModel
from graft.models.prefix_cache import PrefixCache
from graft.models.storage import PanelStorage, RowStorage
from graft.sampling import upload

DEPTHS_AT_ONCE = 8
TREE_ROWS = 64  # draft rows behind a sequence's own


@dataclass(slots=True, eq=False)
class Memory:
    """A head's cache of a sequence: the tokens at positions `first` .. `end` - 1, in rows of its
    own, on top of those that it shares."""

    extent: Extent
    first: int = 0
    end: int = 0
    last: Tensor | None = None  # the layer's input for the last of them

    def begin(self, position: int) -> None:
        """Empty the cache; the next token has this position."""
        self.first = self.end = position


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens that follow a cache; EAGLE needs with each the target's features before it."""

    memory: Memory
    tokens: list[int]
    features: Tensor | None = None  # [n, num_features * E]


class HeadRunner:
    """Base of all heads: rows of their own, the target's embedding, and its output layer unless
    the head has one.

    A head that needs all tokens keeps the rows of earlier prompts where the target does: it gets no
    features of tokens that the target takes from its prefix cache.

    `packed`: our CPU products, where the target uses them too. Weights of 16 bits take half the
    time of 32, and drafts need no more precision.
    """

    window: int | None = None  # of its own rows; a head without one needs all tokens, with features

    def __init__(self, head: Head, model: LanguageModel, *, packed: bool) -> None:
        self.head, self.config, self.model = head, head.config, model
        whole = torch.equal(head.d2t.cpu(), torch.arange(head.config.vocabulary))
        ids = head.d2t[:1] if head.config.own_output else None if whole else head.d2t
        weight = model.forward.output_weight(ids)
        if packed and weight.dtype == torch.float32:
            weight = weight.bfloat16()
        head.to(weight.device)
        for parameter in head.parameters():  # not the rotary frequencies: they need 32 bits
            parameter.data = parameter.data.to(weight.dtype)
        self.device, self.dtype = weight.device, torch.float32 if packed else weight.dtype
        if packed:  # activations in 32 bits, weights in their own dtype
            pack_linears(head)
        own = PanelLinear(weight) if packed else linear_of(weight)
        self.output: nn.Module = own if head.lm_head is None else head.lm_head
        self.tokens: Tensor = head.d2t  # [n]: the ids it drafts
        self.feature_size = head.config.num_features * head.config.hidden
        self.scale = head.config.head_size**-0.5
        sizes = (1, head.config.kv_heads, head.config.head_size)
        self.storage: Storage = (
            PanelStorage(*sizes) if packed else RowStorage(*sizes, self.dtype, self.device)
        )
        self.arena = Arena(self.storage)
        self.prefixes = PrefixCache(self.arena)

    def open(self, text: Sequence[int] = (), first: int = 0, salt: str = "") -> Memory:
        """The cache of a new sequence, whose features start at position `first` of its text: with
        the rows of the tokens before, if an earlier sequence of the same salt left them."""
        if self.window is not None:
            return Memory(self.arena.reserve(self.window + TREE_ROWS))
        if self.model.prefixes.used and not self.prefixes.used:
            self.prefixes.use(max_rows=self.model.prefixes.max_rows)
        pairs, salt = _pairs(text, salt)
        extent = self.prefixes.open(pairs, TREE_ROWS, most=first, salt=salt)
        if extent.shared == first:
            self.prefixes.enter(pairs, extent, salt=salt)
        return Memory(extent, first=first, end=first)

    def hold(self, sequences: int) -> None:
        """Allocate the rows of so many sequences now, so that they never move: as many as the
        target has, or those of the windows."""
        own = self.model.arena.storage.rows if self.window is None else sequences * self.window
        rows = own + sequences * TREE_ROWS
        if rows > self.storage.rows:
            self.storage.resize(-(-rows // ALIGN) * ALIGN)

    def close(self, memory: Memory, text: Sequence[int] = (), salt: str = "") -> None:
        """Free its rows, or keep them for sequences whose text begins like this one."""
        extent = memory.extent
        complete = self.window is None and memory.first == extent.shared
        if complete:
            extent.length = memory.end - memory.first
        pairs, salt = _pairs(text, salt)
        self.prefixes.leave(pairs, extent, most=None if complete else 0, salt=salt)

    @torch.inference_mode()
    def read(self, texts: Sequence[Text]) -> None:
        """Append tokens to the caches of several sequences at once."""
        if not texts:
            return
        counts = [len(text.tokens) for text in texts]
        tokens = on(self.device, [token for text in texts for token in text.tokens])
        features = [text.features for text in texts if text.features is not None]
        inputs = self.inputs(tokens, self.project(torch.cat(features)) if features else None)
        ends = [text.memory.end for text in texts]
        positions = [end + np.arange(count) for end, count in zip(ends, counts, strict=True)]
        rotary = self.head.rotary(on(self.device, np.concatenate(positions))[None])
        keys, values = self.attention.keys_values(self.normed(inputs)[None], rotary)
        rows = [self.rows(*pair) for pair in zip(texts, positions, strict=True)]
        self.storage.write(np.concatenate(rows), torch.stack([keys, values]))
        for text, own in zip(texts, inputs.split(counts), strict=True):
            text.memory.end += len(text.tokens)
            text.memory.last = own[-1].clone()  # frees the rest

    def round(self, memories: Sequence[Memory], extents: Sequence[Extent]) -> "Round":
        """A draft on top of these caches; `extents` are the target's rows."""
        return Round(self, Known(self, memories, extents))

    @torch.inference_mode()
    def logits(self, outputs: Tensor) -> Tensor:
        """[..., n] float32 for outputs [..., E]."""
        return self.output(outputs).float()

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's embedding in the head's dtype."""
        return self.model.forward.embed(tokens).to(self.dtype)

    @property
    def attention(self) -> SelfAttention:
        """The layer's attention over keys of its own."""
        raise NotImplementedError

    def project(self, features: Tensor) -> Tensor:
        """[n, E]: the target's features [n, feature_size] in place of the head's own."""
        raise NotImplementedError

    def inputs(self, tokens: Tensor, features: Tensor | None) -> Tensor:
        """The layer's inputs for tokens [...] and the head's features [..., E] if any."""
        raise NotImplementedError

    def normed(self, inputs: Tensor) -> Tensor:
        """The inputs of its attention."""
        raise NotImplementedError

    def rows(self, text: Text, positions: np.ndarray) -> np.ndarray:
        """The rows of a text at these positions; they are allocated."""
        raise NotImplementedError

    def seen(self, memory: Memory, depth: int) -> list[tuple[int, int]]:
        """The own segments (first row, number of rows) that draft tokens at this depth attend to;
        draft rows follow the last of them, which may be empty."""
        raise NotImplementedError

    @property
    def block(self) -> nn.Module:
        """The module with the layer's MLP and the norm before it."""
        raise NotImplementedError

    def finish(self, inputs: Tensor, attended: Tensor, rotary: Rotary, known: "Known") -> Tensor:
        """[B, W, E]: the layer's output, given its attention's."""
        raise NotImplementedError


class Known:
    """The start of a draft of B sequences: the positions of the roots [B, 1], the layer's inputs
    for them [B, 1, ...], and all committed rows. `extents` are the target's."""

    def __init__(
        self, runner: HeadRunner, memories: Sequence[Memory], extents: Sequence[Extent]
    ) -> None:
        self._runner, self._memories, self._extents = runner, memories, extents
        self.roots = on(runner.device, [memory.end - 1 for memory in memories])[:, None]
        self.inputs = torch.stack([memory.last for memory in memories])[:, None]

    def own(self, queries: Tensor, depth: int) -> Part:
        """Attention of queries [B, H, W, D] at this depth over the head's rows."""
        rows = [self._runner.seen(memory, depth) for memory in self._memories]
        return self._attend(self._runner.storage, 1, queries, rows)

    def target(self, queries: Tensor) -> Part:
        """Attention over the rows of the target's last layers, the last layer's heads last."""
        layers, rows = self._runner.config.cross_layers, [each.segments for each in self._extents]
        return self._attend(self._runner.model.arena.storage, layers, queries, rows)

    def _attend(
        self, storage: Storage, layers: int, queries: Tensor, rows: list[list[tuple[int, int]]]
    ) -> Part:
        parts = [
            storage.attend(layers, query, each, self._runner.scale)
            for query, each in zip(queries, rows, strict=True)
        ]
        mixed, sums = zip(*parts, strict=True)
        return torch.stack(mixed), torch.stack(sums)


class Round:
    """Drafts for B sequences, level by level, after the last committed tokens of each."""

    def __init__(self, runner: HeadRunner, known: Known) -> None:
        self._runner, self._known = runner, known
        self._tree, self._depth = _TreeRows(), 0
        self._angles: Rotary | None = None  # of several depths, as cheap as of one
        self._outputs: Tensor | None = None  # the layer's, of the last level

    @torch.inference_mode()
    def root(self) -> Tensor:
        """[B, 1, E]: the output layer's inputs after the committed tokens."""
        inputs = self._known.inputs
        return self._through(inputs, self._runner.normed(inputs), self._rotary())

    @torch.inference_mode()
    def level(self, tokens: Tensor, above: Tensor) -> Tensor:
        """[B, W, E]: the output layer's inputs after draft tokens [B, W], each a child of node
        `above` [B, W] of the level before."""
        runner, self._depth = self._runner, self._depth + 1
        inputs = runner.inputs(tokens, chosen(self._outputs, above))
        normed, rotary = runner.normed(inputs), self._rotary()
        self._tree.add(*runner.attention.keys_values(normed, rotary), above)
        return self._through(inputs, normed, rotary)

    def _rotary(self) -> Rotary:
        """Of the current level, whose nodes have one depth."""
        if self._angles is None or self._depth >= self._angles[0].shape[2]:
            depths = torch.arange(self._depth + DEPTHS_AT_ONCE, device=self._runner.device)
            self._angles = self._runner.head.rotary(self._known.roots + depths)
        cosine, sine = (each[:, :, self._depth : self._depth + 1] for each in self._angles)
        return cosine, sine

    def _through(self, inputs: Tensor, normed: Tensor, rotary: Rotary) -> Tensor:
        runner = self._runner
        queries = runner.attention.queries(normed, rotary)  # [B, H, W, D]
        own = self._known.own(queries, self._depth)
        mixed, _ = merge_parts([own, *self._tree.attend(queries, runner.scale)])
        attention = runner.attention
        attended = attention.joined(mixed.to(inputs.dtype), attention.gate(normed))
        self._outputs = runner.finish(inputs, attended, rotary, self._known)
        return runner.head.norm(self._outputs)


class _TreeRows:
    """Keys and values of the draft tokens, with their tree mask."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None  # [B, K, T, D]
        self._values: Tensor | None = None
        self._seen: Tensor | None = None  # [B, W, T] of the last level's nodes

    def add(self, keys: Tensor, values: Tensor, above: Tensor) -> None:
        """A level below the last one; see Round.level."""
        own = torch.eye(keys.shape[2], dtype=torch.bool, device=keys.device)
        seen = own.expand(len(keys), -1, -1)
        if self._seen is not None:
            seen = torch.cat([chosen(self._seen, above), seen], 2)
            keys, values = torch.cat([self._keys, keys], 2), torch.cat([self._values, values], 2)
        self._keys, self._values, self._seen = keys, values, seen

    def attend(self, query: Tensor, scale: float) -> list[Part]:
        """Of the last level's queries [B, H, W, D]; no part without draft tokens."""
        if self._keys is None:
            return []
        return [attend_rows(query, self._keys, self._values, scale, self._seen)]


def _pairs(text: Sequence[int], salt: str) -> tuple[Sequence[int], str]:
    """Tokens and salt of a text in a prefix cache whose row p follows from tokens up to p + 1."""
    return text[1:], f"{salt} {text[:1]}"


def chosen(rows: Tensor, above: Tensor) -> Tensor:
    """[B, W, n]: rows number `above` [B, W] of rows [B, any, n]."""
    return rows.gather(1, above[..., None].expand(-1, -1, rows.shape[2]))


def on(device: torch.device, numbers: Sequence[int] | np.ndarray) -> Tensor:
    """Whole numbers on a device, without waiting for it."""
    return upload(torch.from_numpy(np.asarray(numbers, np.int64)), device)
