"""What draft heads cost: a round of drafting, the step that checks it, and memory.

    python -m benchmarks.heads.costs --head HEAD --head HEAD --contexts 1024 8192 --out heads.jsonl
    python -m benchmarks.heads.costs --head HEAD --contexts 8192 32768 131072 --memory \\
        --out memory.jsonl

Times are medians, in milliseconds, and in steps of plain decoding at the same context. A head's
tokens per step over (draft + verify) is the speed-up it can have; docs/results.md holds what
`graft bench` measured against that. With --memory, on a GPU: what torch's allocator holds for a
head's own rows after it has read a text of that length, and the peak memory of a drafting step.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.rows import rows_file
from graft.draft.heads.costs import read_text, text_of
from graft.draft.heads.growth import DraftInput, Growth
from graft.draft.heads.head import BEAMS, growth_for
from graft.models.arena import Extent
from graft.models.gpu import hold_rows
from graft.models.heads.load import load_head
from graft.models.heads.runner import HeadRunner, Memory
from graft.models.load import LoadedModel, load_model
from graft.tree.draft_tree import chain, root_only

REPEATS, WARM = 50, 5
MARGIN = 4096  # rows behind the longest context


def main() -> None:
    """Measure; JSON lines and a printed table."""
    options = _options()
    target = load_model(options.model, dtype=options.dtype, device=options.device)
    rows = max(options.contexts) + MARGIN
    target.model.context_length = max(rows, target.model.context_length)  # for times, not for text
    hold_rows(
        target.model, target.device, sequences=1,
        max_bytes=rows * target.model.arena.storage.row_bytes,
    )  # fmt: skip
    measure = memory if options.memory else times
    with rows_file("heads", options) as out:
        for folder in options.head:
            for context in options.contexts:
                found = measure(load_head(folder, target), target, context)
                out.row(found)
                print("  ".join(f"{name} {value}" for name, value in found.items()))


def times(runner: HeadRunner, target: LoadedModel, context: int) -> dict:
    """Of plain steps, of a round of the paper's shape, and of the step over its tree."""
    runner.hold(1)
    growth, (_, nodes) = growth_for(runner), BEAMS[runner.config.kind]
    with read_text(runner, context) as (known, extent):
        score = target.model.score
        plain = _median(lambda: score([extent], [root_only(1)]), target)
        verify = _median(lambda: score([extent], [chain([1] * (nodes + 1))]), target)
        draft = _median(lambda: _round(runner, growth, known, extent), target)
    return {
        "kind": runner.config.kind,
        "cross_layers": runner.config.cross_layers,
        "context": context,
        "nodes": nodes,
        **{f"{name}_ms": round(1e3 * value, 4) for name, value in
           {"plain": plain, "verify": verify, "draft": draft}.items()},
        "round_in_plain_steps": round((draft + verify) / plain, 3),
    }  # fmt: skip


def memory(runner: HeadRunner, target: LoadedModel, context: int) -> dict:
    """Bytes of the allocator; the target's own rows are held from the start."""
    growth = growth_for(runner)
    before = torch.cuda.memory_allocated()
    with read_text(runner, context) as (known, extent):
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before
        _round(runner, growth, known, extent)
        torch.cuda.reset_peak_memory_stats()
        _round(runner, growth, known, extent)
        peak = torch.cuda.max_memory_allocated() - before
    return {
        "kind": runner.config.kind, "context": context, "held_bytes": held, "peak_bytes": peak,
        "target_bytes": context * target.model.arena.storage.row_bytes,
    }  # fmt: skip


def _round(runner: HeadRunner, growth: Growth, known: Memory, extent: Extent) -> None:
    """Read a token and draft."""
    beam, _ = BEAMS[runner.config.kind]
    growth.begin([DraftInput(text_of(runner, known, 1), extent, None)], beam)()


def _median(work: Callable[[], object], target: LoadedModel) -> float:
    seconds = []
    for number in range(WARM + REPEATS):
        start = time.perf_counter()
        work()
        if target.device.startswith("cuda"):
            torch.cuda.synchronize()
        if number >= WARM:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--head", type=Path, action="append", required=True)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024])
    parser.add_argument("--memory", action="store_true", help="bytes, not seconds")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, added to")
    return parser.parse_args()


if __name__ == "__main__":
    main()
