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
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.decode.encode import encode
from benchmarks.decode.settings import WHOLE, DecodeSettings
from benchmarks.progress import Lines
from benchmarks.rows import rows_file
from benchmarks.suites.task import read_suite, select
from graft import load
from graft.bench.graft_engine import GraftEngine
from graft.bench.measure import Loop, Measurement, PromptTokens, batched, interleave
from graft.bench.sizes import size
from graft.bench.variants import preset
from graft.models.checkpoints.pretrained import locate


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
        tokens = size(context) if context else WHOLE
        return cls(suite, tokens, tuple(presets.split(",")), int(batch), float(temperature))


def main() -> None:
    """Write prompts, or run cells of them."""
    options = _options()
    if options.command == "write":
        with gzip.open(options.out, "wt", encoding="utf-8") as file:
            for each in options.prompts:
                file.writelines(json.dumps(row) + "\n" for row in written(each, options.model))
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
    running, ends = GraftEngine(engine), sorted(engine.loaded.eos_ids)
    with rows_file("decode", options) as results:
        loop = Loop(results, lambda _: running, Lines(), options.max_tokens, ends)
        loop.run([each for cell in cells for each in measurements(cell, prompts)])


def written(text: str, model: str) -> Iterator[dict[str, Any]]:
    """Prompts of SUITE:DATA:COUNT[:CONTEXT] as token ids."""
    suite, data, count, *context = text.split(":")
    contexts = (size(context[0]) if context else WHOLE,)
    settings = DecodeSettings(
        suite=suite, data=Path(data), model=model, limit=int(count), contexts=contexts
    )
    chosen = select(read_suite(suite, settings.data), limit=None, split=settings.split)
    for tokens, cell in encode(locate(model).folder, chosen, settings).prompts.items():
        for each in cell:
            about = {"suite": suite, "category": each.prompt.category, "context": tokens}
            yield about | {"number": each.prompt.number, "token_ids": each.token_ids}


def measurements(cell: Cell, prompts: list[dict[str, Any]]) -> Iterator[Measurement]:
    """Of a cell, the presets of a batch in turn."""
    mine = [
        PromptTokens(each["number"], each["token_ids"], each["category"])
        for each in prompts
        if (each["suite"], each["context"]) == (cell.suite, cell.context)
    ]
    variants = [preset(name) for name in cell.presets]
    batches = batched(mine, cell.batch)
    for each in interleave(variants, batches, [cell.temperature], repeats=1):
        yield Measurement(*each, context=cell.context, suite=cell.suite)


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
