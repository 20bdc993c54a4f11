"""Storages of KV cache rows.

`RowStorage` is a plain tensor, for transformers' modules and for GPUs. `LazyRowStorage` defers
small moves to the next step. `PanelStorage` has the layout of the CPU kernels: sixteen keys side
by side, values in columns of sixteen.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graft.kernels.attention_parts import Part, attend_rows, merge_parts
from graft.kernels.committed_panels import attend_committed
from graft.kernels.panels import COMPUTING, LANES
from graft.kernels.tree_layout import TreeLayout
from graft.models.panel_weights import bits, from_bits
from graft.sampling import upload

Segments = Sequence[tuple[int, int]]  # first row, rows
MAX_DEFERRED = 64  # rows of a move that the next step makes


class Links(NamedTuple):
    """Which recurrent states a step's nodes continue; see `recurrent_triton`."""

    nodes: np.ndarray  # [N, 2] int32: its parent or -1 - slot before; the slot of its own state
    walks: np.ndarray  # [B, 2] int32: first node of a sequence, and the one behind its last


NO_LINKS = Links(np.empty((0, 2), np.int32), np.empty((0, 2), np.int32))


class Stateless:
    """The part of a storage that concerns recurrent states, without any."""

    state_bytes = 0

    def release(self, first: int, last: int) -> None:
        """See Storage."""

    def blank(self, row: int) -> None:
        """See Storage."""

    def resumable(self, segments: Segments) -> int:
        """See Storage."""
        return sum(count for _, count in segments)


class RowStorage(Stateless):
    """kv [2, L, K, rows, D] in the model's dtype on its device."""

    def __init__(
        self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.kv = torch.zeros(2, layers, heads, 0, size, dtype=dtype, device=device)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.kv.shape[3]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in all layers."""
        layers, heads, _, size = self.kv.shape[1:]
        return 2 * layers * heads * size * self.kv.itemsize

    def resize(self, rows: int) -> None:
        """See Storage."""
        shape = (*self.kv.shape[:3], rows, self.kv.shape[4])
        grown = torch.zeros(shape, dtype=self.kv.dtype, device=self.kv.device)
        kept = min(rows, self.rows)
        grown[:, :, :, :kept] = self.kv[:, :, :, :kept]
        self.kv = grown

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """See Storage."""
        self.write(target, self.read(source))

    def read(self, rows: np.ndarray) -> Tensor:
        """See Storage."""
        return self.kv.index_select(3, upload(torch.from_numpy(rows), self.kv.device))

    def write(self, rows: np.ndarray, content: Tensor) -> None:
        """See Storage."""
        place = upload(torch.from_numpy(rows), self.kv.device)
        self.kv.index_copy_(3, place, content.to(self.kv.device, self.kv.dtype))

    def settle(self) -> None:
        """Make the deferred moves, before `kv` is used directly."""

    def last(self, layers: int) -> Tensor:
        """[2, layers * K, rows, D]: a view of the last layers as one layer with more heads."""
        return self.kv[:, -layers:].flatten(1, 2)

    def gather(self, source: Tensor, target: np.ndarray) -> None:
        """See Storage."""
        place = upload(torch.from_numpy(target), self.kv.device)
        for layer, rows in zip(self.kv.unbind(1), source.to(self.kv.device), strict=True):
            index = rows[None, :, :, None].expand(2, -1, -1, layer.shape[3])
            layer.index_copy_(2, place, layer.gather(2, index))

    def keys_of(self, layer: int, segments: Segments) -> Tensor:
        """See Storage."""
        keys = self.kv[0, layer]
        return torch.cat([keys[:, first : first + count] for first, count in segments], 1)

    def attend(self, layers: int, query: Tensor, segments: Segments, scale: float) -> Part:
        """See Storage."""
        keys, values = self.last(layers)
        rows = [slice(first, first + count) for first, count in segments]
        return merge_parts(
            [attend_rows(query, keys[:, each], values[:, each], scale) for each in rows]
        )


class LazyRowStorage(RowStorage):
    """Rows whose last moves are deferred: a step, and every other access, makes them first.

    Between two steps a few rows of every sequence move up. Sent to the device together with the
    step, they cost no launch of their own.
    """

    def __init__(
        self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers, heads, size, dtype, device)
        self._deferred: list[tuple[int, int]] = []

    @property
    def memory(self) -> tuple[int, ...]:
        """Where the rows lie: a graph that reads them is good while this stays."""
        return self.kv.data_ptr(), self.rows

    def follow(self, layout: TreeLayout, outputs: np.ndarray) -> Links:  # noqa: ARG002
        """Let a step's nodes continue their sequences' recurrent states; nodes `outputs` keep
        theirs."""
        return NO_LINKS

    def take_moves(self, most: int) -> np.ndarray:
        """[n, 2] int64 (source, target), at most `most`: the caller makes them before all else."""
        if len(self._deferred) > most:
            self.settle()
        deferred, self._deferred = self._deferred, []
        return np.array(deferred, np.int64).reshape(-1, 2)

    def resize(self, rows: int) -> None:
        """See Storage."""
        self.settle()
        super().resize(rows)

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """See Storage. Only small moves are deferred."""
        if len(source) > MAX_DEFERRED:
            super().move(source, target)
            return
        pairs = list(zip(source.tolist(), target.tolist(), strict=True))
        written = {target for _, target in self._deferred}
        if any(row in written for pair in pairs for row in pair):
            self.settle()
        self._deferred += pairs

    def read(self, rows: np.ndarray) -> Tensor:
        """See Storage."""
        self.settle()
        return super().read(rows)

    def write(self, rows: np.ndarray, content: Tensor) -> None:
        """See Storage."""
        self.settle()
        super().write(rows, content)

    def gather(self, source: Tensor, target: np.ndarray) -> None:
        """See Storage."""
        self.settle()
        super().gather(source, target)

    def keys_of(self, layer: int, segments: Segments) -> Tensor:
        """See Storage."""
        self.settle()
        return super().keys_of(layer, segments)

    def attend(self, layers: int, query: Tensor, segments: Segments, scale: float) -> Part:
        """See Storage."""
        self.settle()
        return super().attend(layers, query, segments, scale)

    def settle(self) -> None:
        """See RowStorage."""
        if self._deferred:
            source, target = self.take_moves(len(self._deferred)).T
            super().write(target.copy(), super().read(source.copy()))


class PanelStorage(Stateless):
    """keys [L, K, rows / 16, D, 16] and values [L, K, D / 16, rows, 16], as bits of a dtype."""

    def __init__(
        self, layers: int, heads: int, size: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.dtype = dtype
        none = bits(torch.empty(0, dtype=dtype))
        self.keys = np.zeros((layers, heads, 0, size, LANES), none.dtype)
        self.values = np.zeros((layers, heads, size // LANES, 0, LANES), none.dtype)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.values.shape[3]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in all layers."""
        layers, heads, _, size, _ = self.keys.shape
        return 2 * layers * heads * size * self.keys.itemsize

    def resize(self, rows: int) -> None:
        """See Storage."""
        layers, heads, _, size, _ = self.keys.shape
        panels, kept = rows // LANES, min(rows, self.rows)
        keys = np.zeros((layers, heads, panels, size, LANES), self.keys.dtype)
        keys[:, :, : kept // LANES] = self.keys[:, :, : kept // LANES]
        self.keys = keys  # now the old ones are freed
        values = np.zeros((layers, heads, size // LANES, rows, LANES), self.values.dtype)
        values[:, :, :, :kept] = self.values[:, :, :, :kept]
        self.values = values

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """See Storage."""
        panel, lane = np.divmod(target, LANES)
        self.keys[:, :, panel, :, lane] = self.keys[:, :, source // LANES, :, source % LANES]
        self.values[:, :, :, target] = self.values[:, :, :, source]

    def read(self, rows: np.ndarray) -> Tensor:
        """See Storage. 8 bits are returned as bfloat16, in which they are exact."""
        keys = self.keys[:, :, rows // LANES, :, rows % LANES]  # [n, L, K, D]
        values = self.values[:, :, :, rows]  # [L, K, D / 16, n, 16]
        layers, heads, columns, count, _ = values.shape
        values = values.transpose(0, 1, 3, 2, 4).reshape(layers, heads, count, columns * LANES)
        found = from_bits(np.stack([keys.transpose(1, 2, 0, 3), values]))
        return found.bfloat16() if found.itemsize == 1 else found

    def write(self, rows: np.ndarray, content: Tensor) -> None:
        """See Storage."""
        keys, values = bits(self._rounded(content.cpu()))  # [L, K, n, D] each
        layers, heads, count, size = keys.shape
        self.keys[:, :, rows // LANES, :, rows % LANES] = keys.transpose(2, 0, 1, 3)
        columns = values.reshape(layers, heads, count, size // LANES, LANES)
        self.values[:, :, :, rows] = columns.transpose(0, 1, 3, 2, 4)

    def _rounded(self, content: Tensor) -> Tensor:
        """As `panels.narrow` rounds."""
        if content.dtype == self.dtype or self.dtype in (torch.float32, torch.bfloat16):
            return content.to(self.dtype)
        largest = torch.finfo(self.dtype).max
        return content.float().clamp(-largest, largest).to(self.dtype)

    def gather(self, source: Tensor, target: np.ndarray) -> None:
        """See Storage."""
        panel, lane = np.divmod(target, LANES)
        for layer, heads in enumerate(source.numpy()):
            for head, rows in enumerate(heads):
                keys, values = self.keys[layer, head], self.values[layer, head]
                keys[panel, :, lane] = keys[rows // LANES, :, rows % LANES]
                values[:, target] = values[:, rows]

    def keys_of(self, layer: int, segments: Segments) -> Tensor:
        """See Storage."""
        rows = np.concatenate([first + np.arange(count) for first, count in segments])
        keys = self.keys[layer, :, rows // LANES, :, rows % LANES]  # [n, K, D]
        return from_bits(keys.transpose(1, 0, 2).copy()).float()

    def attend(self, layers: int, query: Tensor, segments: Segments, scale: float) -> Part:
        """See Storage."""
        heads = layers * self.keys.shape[1]  # the layers as one with more heads
        keys, values = (
            each[-layers:].reshape(1, heads, *each.shape[2:]) for each in (self.keys, self.values)
        )
        with COMPUTING:
            mixed, sums = attend_committed(query.numpy(), (keys, values), 0, segments, scale)
        return torch.from_numpy(mixed), torch.from_numpy(sums)
