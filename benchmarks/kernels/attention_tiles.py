"""The fastest tiles of the attention kernel on this GPU, and its prefill against SDPA.

    python -m benchmarks.kernels.attention_tiles --out tiles.jsonl

Times every sensible tiling for trees over long contexts (the best few are printed; the choice is
`tiles_for` in graft/kernels/tree_attention_triton.py), then whole chunks of a prompt against
torch's flash and cuDNN attention, then one node of each of several sequences as the library plans
it. Medians over CUDA graphs; random data; 32 / 8 heads of 128, bf16, for batches other heads too.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from benchmarks.rows import rows_file
from graft.kernels.tree_attention_triton import PlacedPlan, Tiles, attend, place
from graft.kernels.tree_layout import TreeLayout
from graft.kernels.tree_plan import plan_tree
from graft.tree.draft_tree import DraftTree, chain, in_level_order

HEADS, KV_HEADS, SIZE = 32, 8, 128
GROUP = HEADS // KV_HEADS
CONTEXTS, NODES = (131072, 32768), (1, 8, 16, 32, 64)
CHUNKS = ((0, 2048), (0, 8192), (6144, 2048), (30720, 2048))  # committed tokens, tokens to read
BATCHES = ((1, 32000), (4, 32000), (8, 32000), (16, 8000), (16, 16000), (16, 32000))  # contexts
SHAPES = {"8B": (32, 8, 128), "1.5B": (12, 2, 128), "135M": (9, 3, 64)}  # heads, key heads, size
MEMORY = 220 * 1024  # bytes of a multiprocessor that programs on it can share


def main() -> None:
    """Trees, then prompts, then batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    with rows_file("attention_tiles", parser.parse_args()) as file:
        for row in itertools.chain(trees(), prompts(), batches()):
            file.row(row)


def trees() -> Iterator[dict[str, Any]]:
    """Every tiling at every context and number of nodes; prints the best."""
    for context in CONTEXTS:
        keys, values = random(KV_HEADS, context + 256), random(KV_HEADS, context + 256)
        for nodes in NODES:
            layout = lay_out(context, random_tree(nodes))
            query = random(nodes, HEADS)
            found = []
            for tile, tiles in tilings(nodes * GROUP):
                plan = placed(layout, tile, tiles.programs)
                call = partial(attend, query, keys, values, plan, scale=0.1, tiles=tiles)
                ms = milliseconds(call)
                found.append({"context": context, "nodes": nodes, "tile": tile, "ms": ms,
                              "keys": tiles.keys, "warps": tiles.warps, "stages": tiles.stages,
                              "programs": tiles.programs})  # fmt: skip
            for row in sorted(found, key=lambda row: row["ms"])[:4]:
                print(row, flush=True)
            yield from found


def prompts() -> Iterator[dict[str, Any]]:
    """A chunk of a prompt by our kernel and by torch's."""
    for context, count in CHUNKS:
        layout = lay_out(context, chain(range(count)))
        query, keys, values = (random(count, HEADS), random(KV_HEADS, context + count + 16),
                               random(KV_HEADS, context + count + 16))  # fmt: skip
        plan = placed(layout, 128, 1)
        tiles = Tiles(keys=64, warps=8, stages=3, programs=1)
        ours = partial(attend, query, keys, values, plan, scale=0.1, tiles=tiles)
        calls: dict[str, Callable[[], Tensor]] = {"triton": ours}
        calls |= sdpa(query, keys[:, 16:], values[:, 16:], context)
        for name, call in calls.items():
            row = {
                "context": context,
                "prompt": count,
                "variant": name,
                "ms": milliseconds(call, 4),
            }
            print(row, flush=True)
            yield row


def batches() -> Iterator[dict[str, Any]]:
    """Sequences of one length, each with a segment of its own."""
    for shape, (heads, kv_heads, size) in SHAPES.items():
        for count, context in BATCHES:
            if count * kv_heads * size > 16 * 2 * 256:
                continue  # as much as sixteen contexts of the others
            keys, values = (random(kv_heads, count * (context + 16), size) for _ in range(2))
            starts = np.arange(count) * (context + 16)
            layout = TreeLayout(
                np.arange(count + 1), [[(int(start), context)] for start in starts],
                starts + context, np.full(count, context), np.full(count, -1),
            )  # fmt: skip
            plan = place(layout, heads // kv_heads, keys)
            query = random(count, heads, size)
            ms = milliseconds(partial(attend, query, keys, values, plan, scale=0.1))
            row = {"shape": shape, "sequences": count, "context": context, "ms": ms,
                   "tasks": len(plan.tasks)}  # fmt: skip
            print(row, flush=True)
            yield row


def sdpa(
    query: Tensor, keys: Tensor, values: Tensor, context: int
) -> dict[str, Callable[[], Tensor]]:
    """torch's attention for the same chunk; behind a context it wants one head per query head."""
    queries, options = query.transpose(0, 1)[None], {"is_causal": True, "enable_gqa": True}
    keys, values = keys[None], values[None]
    if context:
        options = {"attn_mask": causal_lower_right(len(query), keys.shape[2])}
        keys, values = (x.repeat_interleave(GROUP, 1) for x in (keys, values))

    def by(backend: SDPBackend) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(queries, keys, values, **options)

        return run

    return {"flash": by(SDPBackend.FLASH_ATTENTION), "cudnn": by(SDPBackend.CUDNN_ATTENTION)}


def tilings(rows: int) -> Iterator[tuple[int, Tiles]]:
    """Tiles that could suit so many query rows."""
    for tile in (16, 32, 64, 128):
        if tile >= 4 * rows or (tile < 64 and tile < rows):
            continue
        shapes = itertools.product((32, 64), (4, 8), (2, 3, 4), (1, 2, 3))
        for keys, warps, stages, programs in shapes:
            held = stages * keys * SIZE * 4 * min(programs, 2)
            if held <= MEMORY and (warps == 8) == (tile == 128):
                yield tile, Tiles(keys, warps, stages, programs)


def placed(layout: TreeLayout, tile: int, programs: int) -> PlacedPlan:
    """The plan for a tiling, on the device."""
    busy = torch.cuda.get_device_properties(0).multi_processor_count
    plan = plan_tree(layout, group=GROUP, tile=tile, tasks=max(1, programs * busy // KV_HEADS))
    arrays = (plan.tasks, plan.parts, plan.bits, layout.positions)
    tensors = [torch.from_numpy(array).cuda() for array in arrays]
    return PlacedPlan(tile, *tensors, int(plan.parts.max()))


def lay_out(context: int, tree: DraftTree) -> TreeLayout:
    """One sequence whose rows begin at 16."""
    rows = 16 + context + np.arange(len(tree))
    return TreeLayout(
        np.array([0, len(tree)]), [[(16, context)]], rows, context + tree.depths,
        tree.parents.astype(np.int64),
    )  # fmt: skip


def random_tree(nodes: int) -> DraftTree:
    """Every node hangs on one of the four before it."""
    rng = np.random.default_rng(nodes)
    parents = np.array([-1] + [rng.integers(max(0, i - 4), i) for i in range(1, nodes)])
    return in_level_order(np.arange(nodes), parents, np.ones(nodes), np.zeros(nodes), ("",))


def random(rows: int, others: int, size: int = SIZE) -> Tensor:
    """[rows, others, size] bf16 on the GPU."""
    return torch.randn(rows, others, size, device="cuda", dtype=torch.bfloat16)


def milliseconds(call: Callable[[], object], calls: int = 10) -> float:
    """Median of a call, replayed from a graph of several."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    taken = []
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / calls)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
