"""The Triton kernels of a decoder layer on a GPU: right, and how fast, and by which plan.

    python -m benchmarks.kernels.decoder_kernels --out products.jsonl

First every kernel is compared with float64 in bf16, while other processes compile. Then the
products of three models are timed for 1 to 64 rows, by torch (cuBLAS) and by `product` with a sweep
of plans; a line shows the best. With --fused they run as in a layer: norms and residuals inside
`product`, as launches of their own beside torch. Times are medians over CUDA graphs that go through
copies of the weights in turn, far more than the cache of the GPU holds.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from benchmarks.rows import rows_file
from graft.kernels.decoder_triton import add_norm, argmax_rows, move_rows, rotate_and_store, swiglu
from graft.kernels.product_triton import ProductPlan, plan_product, product

ROWS = (1, 2, 4, 8, 16, 32, 64)
DEVICE, DTYPE, EPSILON = "cuda", torch.bfloat16, 1e-5
STREAMED = 256 * 2**20  # bytes of weights that a graph goes through before it comes back to one
LEAST_CALLS, MOST_COPIES = 20, 256
EXACT = ("add ", "move", "argmax", "again")  # kernels that must agree to the bit
Run = Callable[[int], Any]  # makes the i-th call of a graph


@dataclass(frozen=True, slots=True)
class Product:
    """One product of a model; `gated`: weights of gates and ups, outputs of each."""

    model: str
    name: str
    outputs: int
    depth: int
    gated: bool = False

    @property
    def weight_shape(self) -> tuple[int, int]:
        """[out, in]."""
        return self.outputs * (2 if self.gated else 1), self.depth

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        return self.weight_shape[0] * self.depth * DTYPE.itemsize


def products_of(model: str, hidden: int, qkv: int, inner: int, vocabulary: int) -> list[Product]:
    """The five products of a decoder."""
    return [
        Product(model, "qkv", qkv, hidden),
        Product(model, "output", hidden, hidden),
        Product(model, "gate_up", inner, hidden, gated=True),
        Product(model, "down", hidden, inner),
        Product(model, "head", vocabulary, hidden),
    ]


PRODUCTS = [
    *products_of("8B", 4096, 6144, 14336, 128256),
    *products_of("0.5B", 896, 1152, 4864, 151936),
    *products_of("135M", 576, 960, 1536, 49152),
]


def main() -> None:
    """Check, compile, time; print a table and write all of it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="JSON lines")
    options.add_argument("--model", choices=sorted({p.model for p in PRODUCTS}), nargs="*")
    options.add_argument("--rows", type=int, nargs="*", default=ROWS)
    options.add_argument("--fused", action="store_true", help="with norms and residuals")
    options.add_argument("--check-only", action="store_true")
    chosen = options.parse_args()
    if not torch.cuda.is_available():
        sys.exit("a CUDA device is needed; the tests run the kernels without one")
    start = time.perf_counter()
    products = [p for p in PRODUCTS if not chosen.model or p.model in chosen.model]
    with rows_file("decoder_kernels", chosen) as file:
        if chosen.check_only:
            errors, timed = check(), {}
        else:
            errors = check_and_compile(products, chosen.rows, fused=chosen.fused)
            print(f"checked and compiled in {time.perf_counter() - start:.0f} s", flush=True)
            small = time_small_kernels(chosen.rows)
            timed = {
                "small": small,
                "product": time_products(products, chosen.rows, fused=chosen.fused),
            }
        for kernel, error in errors.items():
            file.row({"part": "check", "kernel": kernel, "max_error": error})
        for part, rows in timed.items():
            for row in rows:
                file.row({"part": part, **row})
    print(f"{time.perf_counter() - start:.0f} s, written to {chosen.out}")


# Right?


def randoms(*shape: int) -> Tensor:
    """Fresh random numbers."""
    return torch.randn(shape, device=DEVICE).to(DTYPE)


def poison() -> None:
    """Fill free memory with NaN, blocks of every size, so that what stays unwritten shows."""
    blocks = [torch.full((2**power,), float("nan"), device=DEVICE) for power in range(7, 25)]
    blocks.clear()


def check() -> dict[str, float]:
    """Largest error of each kernel, relative to the largest number expected; 0 is exact."""
    torch.manual_seed(time.time_ns() % 2**31)
    errors: dict[str, float] = {}
    for name, found, expected in cases():
        scale = max(float(expected.double().abs().max()), 1e-30)
        difference = float((found.double() - expected.double()).abs().max()) / scale
        errors[name] = difference if difference == difference else float("inf")
    bad = [n for n, error in errors.items() if error > (0 if n.startswith(EXACT) else 2**-7)]
    print("largest relative errors in bf16 (one rounding is up to 3.9e-03):")
    print("  " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items()), flush=True)
    if bad:
        print(f"WRONG: {', '.join(bad)}", flush=True)
    return errors


def cases() -> Iterator[tuple[str, Tensor, Tensor]]:
    """(name, found, expected) of every kernel."""
    for size in (576, 4096, 16384):
        hidden, change, weight = randoms(33, size), randoms(33, size), randoms(size)
        summed = hidden + change
        poison()
        normed = add_norm(hidden, change, weight, EPSILON)
        yield f"add_norm {size}", normed, norm_of(summed.double(), weight)
        yield f"add {size}", hidden, summed
    for size in (64, 80, 96, 128, 256):
        yield from rotation_cases(size)
    gate_up = randoms(17, 2 * 4864)
    poison()
    gate, up = gate_up.double().chunk(2, -1)
    yield "swiglu", swiglu(gate_up), F.silu(gate) * up
    yield from move_cases()
    logits = randoms(9, 151936)
    poison()
    ahead = logits.gather(1, argmax_rows(logits)[:, None]), logits.amax(-1, keepdim=True)
    yield "argmax value", *ahead
    yield "argmax index", argmax_rows(logits), logits.cpu().argmax(-1).to(DEVICE)
    yield from product_cases()


def norm_of(x: Tensor, weight: Tensor) -> Tensor:
    """RMS norm in float64."""
    return F.rms_norm(x.double(), (x.shape[-1],), weight.double(), EPSILON)


def rotation_cases(size: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Queries, keys and values with and without head norms."""
    heads, kv_heads, nodes, rows = 8, 2, 13, 40
    angles = torch.rand(100, size // 2, device=DEVICE) * 6.3
    positions = torch.randint(0, 100, (nodes,), device=DEVICE)
    place = torch.randperm(rows, device=DEVICE)[:nodes]
    place[3] = -1
    kept = place >= 0
    for norms in (None, (randoms(size), randoms(size))):
        qkv, cache = randoms(nodes, (heads + 2 * kv_heads) * size), randoms(2, kv_heads, rows, size)
        expected = cache.double()
        parts = list(qkv.double().view(nodes, -1, size).split([heads, kv_heads, kv_heads], 1))
        for i in range(2):
            part = norm_of(parts[i], norms[i]) if norms else parts[i]
            first, second = part.chunk(2, -1)
            turn, lift = (f(angles[positions].double())[:, None] for f in (torch.cos, torch.sin))
            parts[i] = torch.cat([first * turn - second * lift, second * turn + first * lift], -1)
        expected[0][:, place[kept]] = parts[1][kept].transpose(0, 1)
        expected[1][:, place[kept]] = parts[2][kept].transpose(0, 1)
        poison()
        query = rotate_and_store(
            qkv, positions, angles.cos(), angles.sin(), place, *cache, norms, EPSILON
        )
        name = f"rotate {size}{' normed' if norms else ''}"
        yield name, query, parts[0]
        yield f"{name} cache", cache, expected


def move_cases() -> Iterator[tuple[str, Tensor, Tensor]]:
    """Random moves with rows that are both read and written."""
    for size, count in ((128, 64), (80, 5), (64, 0)):
        kv = randoms(2, 3, 2, 100, size)
        source = torch.randint(0, 100, (64,), device=DEVICE)
        target = torch.randperm(100, device=DEVICE)[:64]
        expected = kv.clone()
        expected[:, :, :, target[:count]] = kv[:, :, :, source[:count]]
        moves = torch.stack([source, target], 1).int()
        move_rows(kv, moves, torch.tensor([count], dtype=torch.int32, device=DEVICE))
        yield f"move {count}", kv, expected


def product_cases() -> Iterator[tuple[str, Tensor, Tensor]]:
    """Every option, few and many rows, plain and split; again, which must give the same bits."""
    plans = (
        None,
        ProductPlan(4, 512, splits=3, warps=2, stages=1, dots=False),
        ProductPlan(32, 128, splits=4, warps=4, stages=4, dots=True),
    )
    for rows, plan in ((rows, plan) for rows in (1, 3, 16, 33) for plan in plans):
        if plan and not plan.dots and rows > 4:
            continue
        x, weight, gain, bias = randoms(rows, 896), randoms(1200, 896), randoms(896), randoms(1200)
        weight, residual = weight / 30, randoms(rows, 1200)
        normed, wide = norm_of(x, gain), weight.double().T
        gate, up = (normed @ wide).chunk(2, -1)
        name = f"product {rows}" + (f"/{plan.splits}" if plan else "")
        again = residual.clone()
        poison()
        for label, found, expected in (
            ("", product(x, weight, plan=plan), x.double() @ wide),
            (" norm bias", product(x, weight, norm=(gain, EPSILON), bias=bias, plan=plan),
             normed @ wide + bias.double()),
            (" norm gated", product(x, weight, norm=(gain, EPSILON), gated=True, plan=plan),
             F.silu(gate) * up),
            (" residual", product(x, weight, residual=again, plan=plan),
             residual.double() + x.double() @ wide),
        ):  # fmt: skip
            yield name + label, found, expected
        first = product(x, weight, norm=(gain, EPSILON), gated=True, plan=plan)
        for _ in range(3):
            again = product(x, weight, norm=(gain, EPSILON), gated=True, plan=plan)
            yield f"again {name}", again, first


# How fast?


def median_us(run: Run, copies: int, replays: int = 7) -> float:
    """Microseconds of a call: the median over replays of a graph that takes copies in turn."""
    calls = max(copies, LEAST_CALLS)
    run(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            run(i % copies)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 2)]
    graph.replay()
    for event in events:
        event.record()
        graph.replay()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False)]
    return 1000 * statistics.median(times) / calls


def time_small_kernels(row_counts: list[int]) -> list[dict[str, Any]]:
    """Microseconds of the other kernels at the shapes of an 8B model, and of torch."""
    lines = []
    weight = randoms(4096)
    kv, moves = randoms(2, 32, 8, 4096, 128), torch.arange(32, device=DEVICE).view(16, 2).int()
    count = torch.tensor([8], dtype=torch.int32, device=DEVICE)
    table = torch.rand(8192, 64, device=DEVICE)
    for rows in row_counts:
        hidden, change, qkv = randoms(rows, 4096), randoms(rows, 4096) / 100, randoms(rows, 6144)
        gate_up, logits = randoms(rows, 28672), randoms(rows, 128256)
        place = torch.arange(rows, device=DEVICE)
        runs: dict[str, Run] = {
            "add_norm": lambda _: add_norm(hidden, change, weight, EPSILON),  # noqa: B023
            "add_norm torch": lambda _: F.rms_norm(hidden + change, (4096,), weight),  # noqa: B023
            "rotate_and_store": lambda _: rotate_and_store(
                qkv, place, table, table, place, kv[0, 0], kv[1, 0], None, EPSILON  # noqa: B023
            ),
            "swiglu": lambda _: swiglu(gate_up),  # noqa: B023
            "argmax_rows": lambda _: argmax_rows(logits),  # noqa: B023
            "argmax torch": lambda _: logits.argmax(-1),  # noqa: B023
            "move_rows": lambda _: move_rows(kv, moves, count),
        }  # fmt: skip
        line = {name: round(median_us(run, 50), 2) for name, run in runs.items()}
        lines.append({"rows": rows, **line})
        print(f"{rows:3} rows, us: " + ", ".join(f"{k} {v}" for k, v in line.items()), flush=True)
    return lines


def plans_for(task: Product, rows: int) -> list[ProductPlan]:
    """The plans worth trying: the default, sums for few rows, dots for all."""
    plans = [plan_product(rows, task.outputs, task.depth, gated=task.gated)]
    if rows <= 4:
        plans += summed_plans(task, rows)
    if rows != 1:
        plans += dot_plans(task, rows)
    return list(dict.fromkeys(plans))


def summed_plans(task: Product, rows: int) -> list[ProductPlan]:
    """Every thread reads 16 bytes at a time and keeps at most 128 sums."""
    kept = rows * (2 if task.gated else 1)
    plans = []
    for warps in (2, 4):
        depth = min(256 * warps, triton.next_power_of_2(task.depth))
        for outputs in (1, 2, 4, 8):
            if 4 <= outputs * kept <= 16 and task.outputs // outputs <= 65536:
                plans.append(ProductPlan(outputs, depth, 1, warps, 1, dots=False))
    short = min(1024, triton.next_power_of_2(task.depth))
    plans.append(ProductPlan(max(1, 4 // kept), short, 1, 4, 3, dots=False))
    return plans


def dot_plans(task: Product, rows: int) -> list[ProductPlan]:
    """Tiles of several shapes, in as many splits as fill the GPU once or twice."""
    plans = []
    for outputs, depth, stages in ((16, 256, 4), (32, 128, 5), (64, 128, 4), (64, 64, 6)):
        depth = depth if task.depth % depth == 0 else 64
        tile = (outputs * (2 if task.gated else 1) + max(rows, 16)) * depth * DTYPE.itemsize
        blocks = triton.cdiv(task.outputs, outputs)
        if tile * stages > 200_000 or blocks > 4096:
            continue
        most = power_below(task.depth // (2 * depth))
        fill = {min(triton.next_power_of_2(triton.cdiv(n, blocks)), most) for n in (120, 400)}
        for splits in sorted(fill):
            warps = 4 if outputs > 16 else 2
            plans.append(ProductPlan(outputs, depth, splits, warps, stages, dots=True))
    return plans


def power_below(number: int) -> int:
    """The largest power of two that is not larger, at least 1."""
    return 2 ** max(number.bit_length() - 1, 0)


def options_of(task: Product, rows: int, *, fused: bool) -> dict[str, Any]:
    """What `product` does besides, as in a layer."""
    options: dict[str, Any] = {"gated": task.gated}
    if fused and task.name in ("output", "down"):
        options["residual"] = torch.zeros(rows, task.outputs, dtype=DTYPE, device=DEVICE)
    elif fused:
        options["norm"] = (torch.ones(task.depth, dtype=DTYPE, device=DEVICE), EPSILON)
    return options


def compile_one(task: Product, *, row_counts: list[int], fused: bool) -> list[str]:
    """Compile every plan of a product into Triton's cache; what failed."""
    weight = torch.zeros(task.weight_shape, dtype=DTYPE, device=DEVICE)
    failed = []
    for count in row_counts:
        x = torch.zeros(count, task.depth, dtype=DTYPE, device=DEVICE)
        for plan in plans_for(task, count):
            try:
                product(x, weight, plan=plan, **options_of(task, count, fused=fused))
            except triton.runtime.errors.OutOfResources as error:
                failed.append(f"{task.model} {task.name} {count} {plan}: {error}")
    torch.cuda.synchronize()
    return failed


def check_and_compile(
    products: list[Product], row_counts: list[int], *, fused: bool
) -> dict[str, float]:
    """The errors of `check`; beside it a process for each product fills Triton's cache."""
    workers = min(os.cpu_count() or 1, 1 + len(products))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        errors = pool.submit(check)
        found = pool.map(partial(compile_one, row_counts=row_counts, fused=fused), products)
        for line in chain.from_iterable(found):
            print(line, flush=True)
        return errors.result()


def time_products(
    products: list[Product], row_counts: list[int], *, fused: bool
) -> list[dict[str, Any]]:
    """A line per product and number of rows, printed as it is found."""
    print("model product  rows   torch us  graft us   GB/s   best plan", flush=True)
    flat = randoms(max(copies_of(p) * p.size for p in products) // DTYPE.itemsize)
    lines = []
    for task in products:
        copies = copies_of(task)
        weights = flat[: copies * task.size // DTYPE.itemsize].view(copies, *task.weight_shape)
        for rows in row_counts:
            lines.append(time_product(task, rows, weights, fused=fused))
    return lines


def copies_of(task: Product) -> int:
    """Enough that the cache of the GPU does not hold them."""
    return min(MOST_COPIES, max(2, -(-STREAMED // task.size)))


def time_product(task: Product, rows: int, weights: Tensor, *, fused: bool) -> dict[str, Any]:
    """torch against the best of the plans."""
    x = randoms(rows, task.depth)
    options = options_of(task, rows, fused=fused)
    by_torch = median_us(torch_run(x, weights, options), len(weights))
    tried: dict[ProductPlan, float] = {}
    for plan in plans_for(task, rows):
        try:
            run: Run = lambda i, plan=plan: product(x, weights[i], plan=plan, **options)  # noqa: E731
            tried[plan] = median_us(run, len(weights))
        except triton.runtime.errors.OutOfResources:
            continue
    best = min(tried, key=lambda plan: tried[plan])
    speed = task.size / tried[best] / 1e3
    print(
        f"{task.model:5} {task.name:8} {rows:4} {by_torch:10.2f} {tried[best]:9.2f} {speed:6.0f}"
        f"   {short(best)}  (default {tried[plans_for(task, rows)[0]]:.2f})",
        flush=True,
    )
    return {
        "model": task.model, "product": task.name, "outputs": task.outputs, "depth": task.depth,
        "gated": task.gated, "rows": rows, "torch_us": round(by_torch, 3),
        "graft_us": round(tried[best], 3), "gb_s": round(speed), "plan": asdict(best),
        "tried": [{**asdict(plan), "us": round(us, 3)} for plan, us in tried.items()],
    }  # fmt: skip


def torch_run(x: Tensor, weights: Tensor, options: dict[str, Any]) -> Run:
    """The same with cuBLAS and a launch for each other thing."""

    def run(i: int) -> Tensor:
        normed = F.rms_norm(x, (x.shape[1],), *options["norm"]) if "norm" in options else x
        y = F.linear(normed, weights[i])
        y = swiglu(y) if options["gated"] else y
        return options["residual"].add_(y) if "residual" in options else y

    return run


def short(plan: ProductPlan) -> str:
    """A plan in a few letters."""
    kind = "dots" if plan.dots else "sums"
    return f"{kind} {plan.outputs}x{plan.depth} /{plan.splits} w{plan.warps} s{plan.stages}"


if __name__ == "__main__":
    main()
