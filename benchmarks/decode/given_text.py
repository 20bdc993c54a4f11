"""Drafts at the price of a shape: random weights of real sizes, and texts that a real model wrote.

    python -m benchmarks.decode.given_text write --model MODEL --prompts prompts.jsonl.gz \\
        --out answers.jsonl.gz
    python -m benchmarks.decode.given_text run --shape qwen3-30b-a3b --answers answers.jsonl.gz

`write` lets a real model answer the prompts of `benchmarks.decode.cells write`. `run` computes all
of every step of the shape, then makes the next token of the known answer the likeliest of a node's
position. So presets draft for a real text, experts are chosen by its tokens, a step takes its time,
and the text is the known one. Both models must have the same tokenizer.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.decode.shapes import SIZES, random_model
from benchmarks.rows import rows_file
from graft import Engine, Request, SamplingParams, load
from graft.assemble.loading import engine_around
from graft.kernels.tree_layout import TreeLayout
from graft.models.language_model import Forward
from graft.models.step_costs import measure
from graft.sampling import upload

LIKELY = 1e9  # a logit above all others
ROOM = 2048  # tokens of the KV cache for drafts and blocks that are not full


class GivenText:
    """A forward whose likeliest tokens are those of a text; one sequence at a time."""

    def __init__(self, forward: Forward) -> None:
        self.follow([])
        self._run = forward.run
        forward.run = self.run

    def follow(self, text: list[int]) -> None:
        """The text from now on; token 0 is behind its end."""
        self._text = np.array([*text, 0], np.int64)

    @torch.inference_mode()
    def run(self, tokens: np.ndarray | Tensor, layout: TreeLayout, outputs: np.ndarray) -> Tensor:
        """See Forward."""
        logits = self._run(tokens, layout, outputs)
        following = self._text.take(layout.positions[outputs] + 1, mode="clip")
        wanted = upload(torch.from_numpy(following), logits.device)
        return logits.scatter_(1, wanted[:, None], LIKELY)


def main() -> None:
    """Write answers, or measure presets on them."""
    options = _options()
    given = options.prompts if options.command == "write" else options.answers
    with gzip.open(given, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    if options.command == "write":
        engine = load(options.model, device=options.device)
        with gzip.open(options.out, "wt", encoding="utf-8") as file:
            for row in answered(engine, rows, options.max_tokens):
                file.write(json.dumps(row) + "\n")
                print(row["suite"], row["number"], len(row["answer"]), flush=True)
        return
    engine, script = given_engine(options.shape, rows)
    with rows_file("given_text", options) as results:
        for row in measured(engine, script, rows, options.presets.split(",")):
            print(json.dumps(row), flush=True)
            results.row(row)


def answered(
    engine: Engine, prompts: list[dict[str, Any]], max_tokens: int
) -> Iterator[dict[str, Any]]:
    """The prompts with the model's greedy answers, those of one token left out."""
    for each in prompts:
        params = SamplingParams(max_tokens=max_tokens)
        answer = list(engine.generate(Request(each["token_ids"], params)).token_ids)
        if len(answer) > 1:
            yield {**each, "answer": answer}


def given_engine(shape: str, rows: list[dict[str, Any]]) -> tuple[Engine, GivenText]:
    """An engine for the longest of these texts, with measured step costs."""
    longest = max(len(row["token_ids"]) + len(row["answer"]) for row in rows) + ROOM
    loaded = random_model(shape, context=longest, batch=1)
    loaded.model.warm_up(1)
    script = GivenText(loaded.model.forward)
    return engine_around(loaded, measure(loaded.model), draft="plain", max_batch=1), script


def measured(
    engine: Engine, script: GivenText, rows: list[dict[str, Any]], presets: list[str]
) -> Iterator[dict[str, Any]]:
    """A row for each text and preset, presets in turn, after one text untimed."""
    for place, row in enumerate([rows[0], *rows]):
        prompt, answer = row["token_ids"], row["answer"]
        script.follow(prompt + answer)
        params = SamplingParams(max_tokens=len(answer), ignore_eos=True)
        first = place % len(presets)
        for preset in presets[first:] + presets[:first]:
            result = engine.generate(Request(prompt, params, draft=preset))
            assert list(result.token_ids) == answer, "the text must be the known one"
            stats = result.stats
            if place:
                about = {name: row[name] for name in ("suite", "category", "number")}
                yield about | {
                    "preset": preset,
                    "tokens": stats.tokens,
                    "steps": stats.steps,
                    "decode_seconds": round(stats.decode_seconds, 5),
                }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="a model's answers")
    write.add_argument("--model", required=True)
    write.add_argument("--prompts", type=Path, required=True, help="of `cells write`")
    write.add_argument("--device", default="auto")
    write.add_argument("--max-tokens", type=int, default=128)
    write.add_argument("--out", type=Path, required=True, help=".jsonl.gz")
    run = commands.add_parser("run", help="presets on these answers")
    run.add_argument("--shape", choices=SIZES, required=True)
    run.add_argument("--answers", type=Path, required=True, help="what `write` wrote")
    run.add_argument("--presets", default="plain,auto,copy")
    run.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
