"""What SGLang's NGRAM worker calls of its compiled kernels on a CPU; their wheel needs CUDA."""

import sys
import types
from collections.abc import Iterator

import torch
from torch import Tensor

PARTS = ("speculative", "kvcacheio", "flash_attn", "elementwise", "memory", "quantization", "utils")


class Absent(types.ModuleType):
    """Any name can be imported; none works."""

    __path__ = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_: object, **__: object) -> None:
            raise NotImplementedError(f"{self.__name__}.{name}")

        return absent


for part in PARTS:
    sys.modules[f"sgl_kernel.{part}"] = Absent(f"sgl_kernel.{part}")
__getattr__ = Absent(__name__).__getattr__


def spans(places: Tensor, first: Tensor, last: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Of each request its row, the columns, and where they are in a flat tensor."""
    at = 0
    for place, start, end in zip(places.tolist(), first.tolist(), last.tolist(), strict=True):
        yield place, slice(start, end), slice(at, at + end - start)
        at += end - start


def assign_req_to_token_pool_cpu(
    places: Tensor, table: Tensor, first: Tensor, last: Tensor, slots: Tensor, _: int
) -> None:
    for place, columns, taken in spans(places, first, last):
        table[place, columns] = slots[taken].to(table.dtype)


def assign_extend_cache_locs_cpu(
    places: Tensor, table: Tensor, first: Tensor, last: Tensor, slots: Tensor, _: int
) -> None:
    for place, columns, taken in spans(places, first, last):
        slots[taken] = table[place, columns].to(slots.dtype)


def fill_accept_out_cache_loc_cpu(accepted: Tensor, slots: Tensor, kept: Tensor) -> None:
    rows = accepted.flatten()
    rows = rows[rows >= 0].long()
    kept[: len(rows)] = slots[rows]


def copy_all_layer_kv_cache_cpu(*_: object) -> None:
    """Called once at start; moves go by SGLANG_NATIVE_MOVE_KV_CACHE."""


def verify_tree_greedy_cpu(  # noqa: PLR0913  SGLang's contract
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    for row in range(len(candidates)):
        node = count = 0
        accept_index[row, 0] = retrive_index[row, 0]
        while True:
            wanted = target_predict[row, node]
            predicts[retrive_index[row, node]] = wanted
            child = int(retrive_next_token[row, node])
            while child >= 0 and candidates[row, child] != wanted:
                child = int(retrive_next_sibling[row, child])
            if child < 0:
                break
            count += 1
            node = child
            accept_index[row, count] = retrive_index[row, child]
        accept_token_num[row] = count


def reconstruct_indices_from_tree_mask(  # noqa: PLR0913  SGLang's contract
    mask: Tensor,
    lengths: Tensor,
    positions: Tensor,
    index: Tensor,
    child: Tensor,
    sibling: Tensor,
    batch: int,
    nodes: int,
) -> None:
    mask = mask.view(batch, nodes, nodes)
    positions.copy_((lengths[:, None] + mask.sum(-1) - 1).flatten())
    index.copy_(torch.arange(batch * nodes).view(batch, nodes))
    child.fill_(-1)
    sibling.fill_(-1)
    for row in range(batch):
        last: dict[int, int] = {}  # by parent
        for node in range(1, nodes):
            parent = max(other for other in range(node) if mask[row, node, other])
            if parent in last:
                sibling[row, last[parent]] = node
            else:
                child[row, parent] = node
            last[parent] = node


sys.modules[
    "sgl_kernel.speculative"
].reconstruct_indices_from_tree_mask = reconstruct_indices_from_tree_mask
