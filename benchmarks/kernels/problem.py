"""What attention is measured on: random keys and values, and a random tree on top of them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.settings import KernelPlan
from graft.bench.simulate.shapes import Shape
from graft.kernels.tree_layout import TreeLayout
from graft.models.arena import Extent
from graft.models.language_model import lay_out
from graft.tree.draft_tree import DraftTree, in_level_order

MOST_SETS = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """One layer of one sequence; the nodes' keys and values follow the context's."""

    query: Tensor  # [N, H, D]
    keys: Tensor  # [K, S + N, D]
    values: Tensor  # [K, S + N, D]
    layout: TreeLayout
    scale: float

    def bias(self) -> Tensor:
        """[N, S + N] in the query's dtype: 0 where a node may look, -inf elsewhere."""
        nodes, rows = len(self.query), self.keys.shape[1]
        allowed = np.ones((nodes, rows), bool)
        allowed[:, rows - nodes :] = self.layout.ancestors.astype(bool)
        hidden = torch.from_numpy(~allowed).to(self.query.device)
        return torch.zeros_like(hidden, dtype=self.query.dtype).masked_fill_(hidden, -torch.inf)


def random_tree(nodes: int, vocabulary: int, seed: int) -> DraftTree:
    """Each node hangs under one of the last few before it: some long paths, some siblings."""
    draw = np.random.default_rng(seed)
    parents = np.array([-1, *(int(draw.integers(max(0, i - 6), i)) for i in range(1, nodes))])
    tokens = (int(draw.integers(vocabulary)) + np.arange(nodes)) % vocabulary
    ones = np.ones(nodes)
    return in_level_order(tokens, parents, ones, 0 * ones, ("random",))


def make_problem(
    plan: KernelPlan, context: int, nodes: int, seed: int, *, nodes_matter: bool = False
) -> Problem:
    """Fresh random numbers; no zeros, which a GPU multiplies faster.

    `nodes_matter`: the tree's keys are drawn wider, so that attending to a wrong one shows.
    """
    shape, device, dtype = plan.shape, plan.device, plan.torch_dtype
    draw = torch.Generator(device).manual_seed(seed)
    rows = context + nodes
    query = torch.randn(nodes, shape.heads, shape.head_size, generator=draw, device=device)
    kv = torch.randn(2, shape.kv_heads, rows, shape.head_size, generator=draw, device=device)
    if nodes_matter:
        kv[0, :, context:] *= 4
    tree = random_tree(nodes, max(shape.vocabulary, nodes), seed)
    layout = lay_out([Extent(0, rows, context)], [tree])
    keys, values = kv.to(dtype)
    return Problem(query.to(dtype), keys, values, layout, shape.head_size**-0.5)


def input_sets(shape: Shape, rows: int, plan: KernelPlan) -> int:
    """How many sets of keys must take turns so that the GPU's cache holds none of them."""
    if plan.device.type != "cuda":
        return 2
    cache = torch.cuda.get_device_properties(plan.device).L2_cache_size
    return min(MOST_SETS, max(2, -(-2 * cache // (shape.kv_numbers(rows) * plan.itemsize))))
