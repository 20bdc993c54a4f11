"""Drafts of a head whose layer is a decoder's, on the CPU: one compiled call per level.

Draft rows follow the rows of their sequence, as a target's tree does. A node attends to its
ancestors and itself.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from graft.kernels.panels import COMPUTING
from graft.kernels.tree_attention_panels import split_tree
from graft.models.eagle_head import Eagle2Layer
from graft.models.forward_panels import Scratch, room_for_queries, run_layers, use_threads
from graft.models.heads.config import HeadConfig
from graft.models.heads.panel_linear import PanelLinear
from graft.models.heads.runner import DEPTHS_AT_ONCE, TREE_ROWS, HeadRunner, Memory, chosen

_NONE = np.empty((1, 0), np.float32)


class PanelLayer:
    """The layer with the weights packed for `run_layers`; the final norm comes after it."""

    def __init__(self, layer: Eagle2Layer, config: HeadConfig) -> None:
        attention, mlp, self.config = layer.self_attn, layer.mlp, config
        heads = (attention.q_proj, attention.k_proj, attention.v_proj)
        biases = [each.bias.numpy() for each in heads if each.bias is not None]
        norms = [_weight(attention.q_norm), _weight(attention.k_norm)]
        self._weights = (
            _weight(layer.input_layernorm), _stacked(*heads),
            np.concatenate(biases)[None] if biases else _NONE,
            np.stack(norms, 1) if config.head_norms else _NONE[..., None],
            _stacked(attention.o_proj), _weight(layer.post_attention_layernorm),
            _stacked(mlp.gate_proj, mlp.up_proj), _stacked(mlp.down_proj),
            np.zeros(1, np.int64), (_NONE,) * 4,
        )  # fmt: skip
        sizes = (config.heads, config.kv_heads, config.head_size)
        numbers = (config.epsilon, config.head_size**-0.5)
        self._constants = np.array(sizes, np.int64), np.array(numbers, np.float32)
        self._scratch, self._threads = Scratch(), use_threads()
        self.final_norm = layer.final_layernorm

    def run(
        self,
        hidden: np.ndarray,
        cache: tuple[np.ndarray, np.ndarray],
        where: tuple[np.ndarray, ...],
        plan: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Change hidden [n, E] in place; see `run_layers`."""
        partial = self._scratch.take(int(plan[1][:, 3].max()), self.config, len(hidden))
        scratch = (room_for_queries(self.config, len(hidden)), *partial)
        with COMPUTING:
            run_layers(
                hidden, self._weights, cache, where, plan, self._constants, scratch, self._threads
            )


def _stacked(*parts: PanelLinear) -> np.ndarray:
    """[1, panels, K, 16]: their outputs side by side."""
    return np.concatenate([part.panels for part in parts])[None]


def _weight(norm: nn.Module) -> np.ndarray:
    """[1, E], or nothing where there is no norm."""
    if isinstance(norm, nn.Identity):
        return _NONE
    return norm.weight.detach().float().numpy()[None]


class PanelRows:
    """The rows of a draft: level by level behind each sequence's own rows."""

    def __init__(self, segments: Sequence[list[tuple[int, int]]]) -> None:
        self._segments = segments  # of known rows, by sequence
        self._behind = np.array([row + count for *_, (row, count) in segments], np.int64)
        self._depths = np.empty(0, np.int64)  # of all draft tokens of a sequence
        self._seen = np.zeros((len(segments), 1, 0), np.uint8)  # [B, W, T] by the last level

    def add(self, above: np.ndarray) -> np.ndarray:
        """Rows [B, W] of a level whose nodes are children of `above` [B, W]."""
        sequences, width = above.shape
        first, depth = len(self._depths), 1 + (self._depths[-1] if len(self._depths) else 0)
        assert first + width <= TREE_ROWS, "more draft tokens than rows"
        own = np.broadcast_to(np.eye(width, dtype=np.uint8), (sequences, width, width))
        inherited = np.take_along_axis(self._seen, above[..., None], 1)
        self._seen = np.concatenate([inherited, own], 2)
        self._depths = np.concatenate([self._depths, np.full(width, depth)])
        return self._behind[:, None] + first + np.arange(width)

    @property
    def last(self) -> np.ndarray:
        """Rows [B, 1] of the roots."""
        return self._behind[:, None] - 1

    @property
    def ancestors(self) -> np.ndarray:
        """[B * W, T]: the draft tokens that the last level's nodes attend to."""
        sequences, width, guesses = self._seen.shape
        return self._seen.reshape(sequences * width, guesses)

    def plan(self) -> tuple[np.ndarray, np.ndarray]:
        """The attention tasks of the last level's nodes, and how their results are merged."""
        tasks, blocks, nodes = [], [], self._seen.shape[1]
        for number, segments in enumerate(self._segments):
            begun, key, block = len(tasks), 0, (number * nodes, nodes, 0)
            for row, count in segments[:-1]:
                tasks += split_tree(row, count, key, self._depths[:0], block)
                key += count
            row, count = segments[-1]
            behind = key + count - 1 + self._depths
            tasks += split_tree(row, count, key, behind, block)
            blocks.append((*block[:2], begun, len(tasks) - begun))
        return np.array(tasks, np.int64).reshape(-1, 9), np.array(blocks, np.int64)


class PanelRound:
    """See Round; `layer` is the runner's."""

    def __init__(self, runner: HeadRunner, layer: PanelLayer, memories: Sequence[Memory]) -> None:
        self._runner, self._layer, self._depth = runner, layer, 0
        self._roots = np.array([memory.end - 1 for memory in memories], np.int64)
        self._inputs = torch.stack([memory.last for memory in memories])[:, None]
        self._rows = PanelRows([runner.seen(memory, 0) for memory in memories])
        self._outputs: Tensor | None = None  # of the last level
        self._angles: list[np.ndarray] = []  # cosine and sine [B, T, D / 2] of several depths

    @torch.inference_mode()
    def root(self) -> Tensor:
        """See Round. The root's keys are written again."""
        return self._through(self._inputs, self._rows.last)

    @torch.inference_mode()
    def level(self, tokens: Tensor, above: Tensor) -> Tensor:
        """See Round."""
        self._depth += 1
        inputs = self._runner.inputs(tokens, chosen(self._outputs, above))
        return self._through(inputs, self._rows.add(above.numpy()))

    def _through(self, inputs: Tensor, rows: np.ndarray) -> Tensor:
        width, storage = inputs.shape[1], self._runner.storage
        hidden = inputs.flatten(0, 1).numpy().copy()
        positions = np.repeat(self._roots + self._depth, width)
        where = (rows.ravel(), positions, self._rows.ancestors, *self._turned(width))
        self._layer.run(hidden, (storage.keys, storage.values), where, self._rows.plan())
        self._outputs = self._layer.final_norm(torch.from_numpy(hidden).view(inputs.shape))
        return self._outputs

    def _turned(self, width: int) -> list[np.ndarray]:
        """Cosine and sine [B * W, D / 2] of the level at hand."""
        if not self._angles or self._depth >= self._angles[0].shape[1]:
            depths = torch.from_numpy(self._roots)[:, None]
            depths = depths + torch.arange(self._depth + DEPTHS_AT_ONCE)
            both = self._runner.head.rotary(depths)
            half = both[0].shape[-1] // 2
            self._angles = [each[:, 0, :, :half].numpy() for each in both]
        return [each[:, self._depth].repeat(width, 0) for each in self._angles]
