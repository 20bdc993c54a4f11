"""Many cells by one load of a model, for a GPU that is rented by the minute.

    python -m benchmarks.decode.cells write --model MODEL --out prompts.jsonl.gz \\
        --prompts spec_bench:SPEC_BENCH:4 --prompts qmsum:QMSUM:6:12k
    python -m benchmarks.decode.cells run --model GROWN --head HEAD --prompts prompts.jsonl.gz \\
        --cell spec_bench:plain,eagle3,auto --cell spec_bench:plain,auto:8:1 --out rows.jsonl
    python -m benchmarks.decode.cells run --model GROWN --draft-model SMALL \\
        --cell qmsum@12k plain,sd@0.8,rag,rapid@rapid:20 --load-options '{"gamma": 4}' ...

`write` needs the suites' files and the tokenizer alone: COUNT odd-numbered prompts of each category
(SUITE:DATA:COUNT), perhaps cut to a context, as token ids. `run` measures cells of them
(SUITE[@CONTEXT]:PRESETS[:BATCH[:TEMPERATURE]]; with spaces in place of the colons presets may have
colons), the presets of a batch in turn, after a warm-up of each. Presets, engines and rows are
those of `python -m benchmarks decode`: a verifier has an engine of its own, a second load.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.decode.encode import encode, end_tokens_of
from benchmarks.decode.graft_variants import graft_variant
from benchmarks.decode.run import backends
from benchmarks.decode.settings import WHOLE, DecodeSettings
from benchmarks.options import json_object
from benchmarks.progress import Lines
from benchmarks.rows import rows_file
from benchmarks.script import ended
from benchmarks.suites.task import read_suite, select
from graft.bench.measure import Loop, Measurement, PromptTokens, batched, interleave
from graft.bench.sizes import size
from graft.errors import InputError
from graft.models.checkpoints.pretrained import locate

SETTINGS = (
    "model", "draft_model", "head", "dtype", "device", "context_length", "load_options",
    "max_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """Presets on the prompts of a suite at a context (0: whole), so many at once."""

    suite: str
    context: int
    presets: tuple[str, ...]
    batch: int
    temperature: float

    @classmethod
    def read(cls, *words: str) -> "Cell":
        """SUITE[@CONTEXT] PRESETS [BATCH [TEMPERATURE]], or one word with colons between them."""
        try:
            name, presets, *rest = words if len(words) > 1 else words[0].split(":")
            suite, _, context = name.partition("@")
            batch, temperature = (*rest, *("1", "0")[len(rest) :])
            tokens = size(context) if context else WHOLE
            return cls(suite, tokens, tuple(presets.split(",")), int(batch), float(temperature))
        except ValueError:
            raise InputError(
                f"--cell takes SUITE[@CONTEXT] PRESETS BATCH TEMPERATURE, not {' '.join(words)!r}"
            ) from None


def main() -> None:
    """Write prompts, or run cells of them."""
    options = _options()
    if options.command == "write":
        with gzip.open(options.out, "wt", encoding="utf-8") as file:
            for each in options.prompts:
                file.writelines(json.dumps(row) + "\n" for row in written(each, options))
        return
    with gzip.open(options.prompts, "rt", encoding="utf-8") as file:
        prompts = [json.loads(line) for line in file]
    cells = [Cell.read(*each) for each in options.cell]
    settings, checkpoint = settings_of(options, cells), locate(options.model)
    with backends(settings, checkpoint) as running, rows_file("decode", options) as results:
        ends = end_tokens_of(checkpoint.folder)
        loop = Loop(results, running.get, Lines(), options.max_tokens, ends)
        loop.run([each for cell in cells for each in measurements(cell, prompts)])


def settings_of(options: argparse.Namespace, cells: list[Cell]) -> DecodeSettings:
    """The settings of `python -m benchmarks decode` that an engine for all cells needs."""
    return DecodeSettings(
        **{name: getattr(options, name) for name in SETTINGS},
        drafts=tuple(dict.fromkeys(name for cell in cells for name in cell.presets)),
        batches=tuple(cell.batch for cell in cells),
        temperatures=tuple(cell.temperature for cell in cells),
    )


def written(text: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Prompts of SUITE:DATA:COUNT[:CONTEXT] as token ids."""
    suite, data, count, *context = text.split(":")
    model, length = options.model, options.context_length
    settings = DecodeSettings(
        suite=suite, data=Path(data), model=model, limit=int(count), context_length=length,
        contexts=(size(context[0]) if context else WHOLE,),
    )  # fmt: skip
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
    variants = [graft_variant(name) for name in cell.presets]
    batches = batched(mine, cell.batch)
    for each in interleave(variants, batches, [cell.temperature], repeats=1):
        yield Measurement(*each, context=cell.context, suite=cell.suite)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="prompts as token ids")
    run = commands.add_parser("run", help="measure cells")
    for each in (write, run):
        each.add_argument("--model", required=True, help="`write` needs its tokenizer alone")
        each.add_argument("--context-length", type=size, help="the model's own by default")
    write.add_argument("--prompts", action="append", required=True, metavar="SUITE:DATA:COUNT")
    write.add_argument("--out", type=Path, required=True, help=".jsonl.gz")
    run.add_argument("--head", default="auto", help="a draft head, or none")
    run.add_argument("--draft-model")
    run.add_argument("--dtype", default="auto")
    run.add_argument("--device", default="auto")
    run.add_argument("--load-options", type=json_object, default={}, help="more of graft.load")
    run.add_argument("--prompts", type=Path, required=True, help="what `write` wrote")
    what = "SUITE[@CONTEXT] PRESETS BATCH TEMPERATURE"
    run.add_argument("--cell", action="append", required=True, nargs="+", metavar="WORD", help=what)
    run.add_argument("--max-tokens", type=int, default=128)
    run.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(ended(main))
