"""Products of a model's matrices by the fastest way that has the same bits for any number of rows.

Ways are the plans of `product_triton` and the library's product. The library chooses its order of
summation by the number of rows, so its result is compared with ours, bit for bit, before it is used
for that number. Ways are measured at the first call with a number of rows; what was chosen is kept
on disk. Small matrices are not worth it: their products take as long as a launch.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from graft.errors import GraftError
from graft.home import atomic_file, home
from graft.kernels.decoder_triton import swiglu
from graft.kernels.packed_product_triton import scale_sums
from graft.kernels.product_triton import (
    FEW_ROWS,
    DenseMatrix,
    Matrix,
    ProductPlan,
    segment_bounds,
)

log = logging.getLogger(__name__)

FEW = 128  # rows from which the library is faster than ours wherever it has the same bits ...
STEP = 64  # ... and is tried, if they are a multiple of this: steps are padded
SMALL = 8 << 20  # bytes of a matrix
REPEATS = 12  # launches of a way that is measured
MATRICES = 8  # of different layers, so that no weights come from a cache
LIBRARY = None


class ChosenProduct:
    """The products with one matrix of every layer."""

    def __init__(
        self,
        weights: Sequence[Tensor | Matrix],
        biases: Sequence[Tensor | None] | None = None,
        *,
        gated: bool = False,
        cut: bool = False,
    ) -> None:
        """With `gated` see `product`. `cut` matrices may have several segments: their products
        are then [segments, N, O] in float32."""
        self._weights: list[Matrix] = [
            DenseMatrix(each) if isinstance(each, Tensor) else each for each in weights
        ]
        self._gated = gated
        self._biases = biases or [None] * len(weights)
        outputs, self._depth = self._weights[0].shape
        self._outputs = outputs // 2 if gated else outputs
        self.segments = self._weights[0].segments if cut else 1
        self._ways: dict[int, ProductPlan | None] = {}  # by rows
        self._plans: dict[int, ProductPlan] = {}  # the fastest by rows of a tile

    def __call__(self, index: int, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The product of rows x [N, I] with the matrix of a layer, in `out` if there is one."""
        rows = max(len(x), self._weights[0].min_rows)
        if rows not in self._ways:
            self._ways[rows] = self._choose(rows)
        return self._run(self._ways[rows], index, x, out)

    def _run(
        self, plan: ProductPlan | None, index: int, x: Tensor, out: Tensor | None = None
    ) -> Tensor:
        weight, bias = self._weights[index], self._biases[index]
        if plan is not LIBRARY:
            return weight.product(
                x, bias=bias, gated=self._gated, segments=self.segments, out=out, plan=plan
            )
        dense = weight.dense()
        if self.segments > 1:
            sums = x.new_empty(self.segments, len(x), self._outputs, dtype=torch.float32)
            for part, (first, last) in zip(
                sums, segment_bounds(self._depth, self.segments), strict=True
            ):
                torch.mm(
                    x[:, first:last], dense[:, first:last].T, out_dtype=torch.float32, out=part
                )
            return sums if weight.factors is None else sums.mul_(weight.factors)
        y = _library(x, dense, bias, weight.factors)
        y = swiglu(y) if self._gated else y
        return y if out is None else out.copy_(y)

    def _choose(self, rows: int) -> ProductPlan | None:
        weight = self._weights[0]
        small = rows <= FEW and weight.nbytes < SMALL
        if weight.device.type != "cuda" or small or (rows > FEW and rows % STEP):
            return weight.plans(rows, self._outputs)[0]
        assert not torch.cuda.is_current_stream_capturing(), "measure before capturing"
        kind = "gated" if self._gated else "biased" if self._biases[0] is not None else "plain"
        name = f"{rows}x{self._outputs}x{self._depth} {weight.storage} {self.segments} {kind}"
        kept = _kept(weight.device)
        if name not in kept:
            way = self._measure(rows)
            kept[name] = None if way is LIBRARY else asdict(way)
            _keep(weight.device, kept)
        found = kept[name]
        return LIBRARY if found is None else ProductPlan(**found)

    def _measure(self, rows: int) -> ProductPlan | None:
        """The faster of ours and the library's, if that has the same bits; it is for many rows. In
        float32 it has not, but without matrix instructions ours takes several times as long."""
        ours, x = self._fastest_plan(rows), self._random(rows)
        if rows <= FEW_ROWS:
            return ours
        same = torch.equal(self._run(LIBRARY, 0, x), self._run(ours, 0, x))
        if rows > FEW:
            return LIBRARY if same or x.dtype == torch.float32 else ours
        return LIBRARY if same and self._seconds(LIBRARY, x) < self._seconds(ours, x) else ours

    def _fastest_plan(self, rows: int) -> ProductPlan:
        """Measured with full tiles, once for all numbers of rows of a tile."""
        made = self._weights[0].plans(rows, self._outputs)
        tile = made[0].rows
        if tile not in self._plans:
            x = self._random(tile)
            times = [self._seconds(plan, x) for plan in made]
            log.debug("%s: %s, %s", self._weights[0].shape, made, times)
            self._plans[tile] = made[times.index(min(times))]
        return self._plans[tile]

    def _random(self, rows: int) -> Tensor:
        weight = self._weights[0]
        return torch.randn(rows, self._depth, device=weight.device).to(weight.dtype)

    def _seconds(self, plan: ProductPlan | None, x: Tensor) -> float:
        return _seconds(partial(self._run_some, plan, x))

    def _run_some(self, plan: ProductPlan | None, x: Tensor) -> None:
        for repeat in range(REPEATS):
            self._run(plan, repeat % min(len(self._weights), MATRICES), x)


def _library(x: Tensor, weight: Tensor, bias: Tensor | None, factors: Tensor | None) -> Tensor:
    """x @ weight.T * factors + bias, rounded once."""
    if factors is None:
        return F.linear(x, weight, bias)
    return scale_sums(torch.mm(x, weight.T, out_dtype=torch.float32), factors, bias, x)


def _seconds(run: Callable[[], None]) -> float:
    """The device's time, launched as a graph: few rows take less than launching them."""
    try:
        run()
    except triton.runtime.errors.OutOfResources:
        return float("inf")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    times = []
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times)


def _file(device: torch.device) -> Path:
    name = torch.cuda.get_device_name(device).replace(" ", "-").replace("/", "-")
    return home() / "products" / f"{name}-{torch.__version__}-{triton.__version__}.json"


@cache
def _kept(device: torch.device) -> dict[str, dict | None]:
    """What was chosen on this kind of device, by earlier runs too."""
    try:
        return json.loads(_file(device).read_text())
    except (OSError, ValueError):
        return {}


def _keep(device: torch.device, chosen: dict[str, dict | None]) -> None:
    try:
        with atomic_file(_file(device)) as path:
            path.write_text(json.dumps(chosen, indent=1))
    except (OSError, GraftError) as error:
        log.warning("measured products are not kept: %s", error)
