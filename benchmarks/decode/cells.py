"""Many cells by one load of a model, for a GPU that is rented by the minute.

    python -m benchmarks.decode.cells write --model MODEL --out prompts.jsonl.gz \
        --prompts spec_bench:SPEC_BENCH:4 --prompts qmsum:QMSUM:6:12k
    python -m benchmarks.decode.cells run --model GROWN --head HEAD --prompts prompts.jsonl.gz \
        --cell spec_bench:plain,eagle3,auto --cell spec_bench:plain,auto:8:1 --out rows.jsonl

`write` needs the suites' files and the tokenizer alone: COUNT odd-numbered prompts of each category
(SUITE:DATA:COUNT), perhaps cut to a context, as token ids. `run` measures cells of them
(SUITE[@CONTEXT]:PRESETS[:BATCH[:TEMPERATURE]]), the presets of a batch in turn, after a warm-up of
each. Rows have the schema of `python -m benchmarks decode`.
"""

import argparse
import gzip
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.decode.cut import Cutter
from benchmarks.decode.encode import MIN_FILLED
from benchmarks.rows import rows_file
from benchmarks.suites.task import limited, read_suite, select
from graft import Engine, Request, SamplingParams, load
from graft.bench.sizes import size
from graft.models.checkpoints.pretrained import locate

WARM_UP = 48  # tokens of an answer, to the end of a prompt


@dataclass(frozen=True, slots=True)
class Cell:
    """Presets on the prompts of a suite at a context (0: whole), so many at once."""

    suite: str
    context: int
    presets: tuple[str, ...]
    batch: int
    temperature: float

    @classmethod
    def read(cls, text: str) -> "Cell":
        """SUITE[@CONTEXT]:PRESETS[:BATCH[:TEMPERATURE]]."""
        name, presets, *rest = text.split(":")
        suite, _, context = name.partition("@")
        batch, temperature = (*rest, *("1", "0")[len(rest) :])
        tokens = size(context) if context else 0
        return cls(suite, tokens, tuple(presets.split(",")), int(batch), float(temperature))


def main() -> None:
    """Write prompts, or run cells of them."""
    options = _options()
    if options.command == "write":
        rows = [row for each in options.prompts for row in written(each, _cutter(options.model))]
        with gzip.open(options.out, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        return
    with gzip.open(options.prompts, "rt", encoding="utf-8") as file:
        prompts = [json.loads(line) for line in file]
    cells = [Cell.read(each) for each in options.cell]
    engine = load(
        options.model,
        head=None if options.head == "none" else options.head,
        draft_model=options.draft_model,
        dtype=options.dtype,
        device=options.device,
        max_batch=max(cell.batch for cell in cells),
        kv_cache=options.kv_cache,
        prefix_cache=0,
    )
    with rows_file("decode", options) as file:
        for cell in cells:
            for row in measured(engine, cell, prompts, options.max_tokens):
                file.row(row)
            print(cell, file=sys.stderr, flush=True)


def written(text: str, cutter: Cutter) -> Iterator[dict[str, Any]]:
    """Prompts of SUITE:DATA:COUNT[:CONTEXT] as token ids, those that fill it."""
    suite, data, count, *given = text.split(":")
    context = size(given[0]) if given else 0
    prompts = select(read_suite(suite, Path(data)), limit=None, split="report")
    fitting: dict[int, list[int]] = {}
    for prompt in prompts if context else ():
        tokens = cutter.fit(prompt, context)
        if tokens and len(tokens) >= MIN_FILLED * context:
            fitting[prompt.number] = tokens
    kept = [prompt for prompt in prompts if not context or prompt.number in fitting]
    for prompt in limited(kept, int(count)):
        tokens = fitting.get(prompt.number) or cutter.tokens(prompt.content)
        yield {
            "suite": suite, "category": prompt.category, "number": prompt.number,
            "context": context, "token_ids": tokens,
        }  # fmt: skip


def measured(
    engine: Engine, cell: Cell, prompts: list[dict[str, Any]], max_tokens: int
) -> Iterator[dict[str, Any]]:
    """A row for each preset and batch of a cell."""
    mine = [
        each for each in prompts if (each["suite"], each["context"]) == (cell.suite, cell.context)
    ]
    batches = [mine[i : i + cell.batch] for i in range(0, len(mine), cell.batch)]
    batches = [each for each in batches if len(each) == cell.batch]
    for preset in cell.presets if batches else ():
        answer(engine, cell, preset, batches[0], WARM_UP)
    for number, batch in enumerate(batches):
        first = number % len(cell.presets)
        for preset in (*cell.presets[first:], *cell.presets[:first]):
            yield answer(engine, cell, preset, batch, max_tokens)


def answer(
    engine: Engine, cell: Cell, preset: str, batch: list[dict[str, Any]], max_tokens: int
) -> dict[str, Any]:
    """The row of one preset on one batch."""
    requests = [
        Request(
            each["token_ids"],
            SamplingParams(
                max_tokens=max_tokens, temperature=cell.temperature, seed=each["number"]
            ),
            draft=preset,
        )
        for each in batch
    ]
    start = time.perf_counter()
    results = engine.generate(requests)
    seconds = time.perf_counter() - start
    stats = [result.stats for result in results]
    outputs = json.dumps([result.token_ids for result in results])
    categories = {each["category"] for each in batch}
    return {
        "suite": cell.suite,
        "category": categories.pop() if len(categories) == 1 else "mixed",
        "prompts": [each["number"] for each in batch],
        "variant": preset,
        "temperature": cell.temperature,
        "batch": cell.batch,
        "context": cell.context,
        "repeat": 0,
        "prompt_tokens": sum(each.prompt_tokens for each in stats),
        "tokens": sum(each.tokens for each in stats),
        "first_tokens": len(stats),
        "prefill_seconds": max(each.prefill_seconds for each in stats),
        "decode_seconds": max(each.decode_seconds for each in stats),
        "total_seconds": seconds,
        "steps": sum(each.steps for each in stats),
        "drafted": sum(sum(each.per_step_drafted) for each in stats),
        "output": hashlib.sha256(outputs.encode()).hexdigest()[:10],
    }


def _cutter(model: str) -> Cutter:
    from transformers import AutoTokenizer

    return Cutter(AutoTokenizer.from_pretrained(locate(model).folder))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="prompts as token ids")
    write.add_argument("--model", required=True, help="whose tokenizer to use")
    write.add_argument("--prompts", action="append", required=True, metavar="SUITE:DATA:COUNT")
    write.add_argument("--out", type=Path, required=True, help=".jsonl.gz")
    run = commands.add_parser("run", help="measure cells")
    run.add_argument("--model", required=True)
    run.add_argument("--head", default="auto", help="a draft head, or none")
    run.add_argument("--draft-model")
    run.add_argument("--dtype", default="auto")
    run.add_argument("--device", default="auto")
    run.add_argument("--kv-cache", type=size, help="bytes")
    run.add_argument("--prompts", type=Path, required=True, help="what `write` wrote")
    run.add_argument("--cell", action="append", required=True, metavar="SUITE:PRESETS:BATCH")
    run.add_argument("--max-tokens", type=int, default=128)
    run.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
