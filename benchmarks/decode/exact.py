"""Whether answers depend on drafting, on the batch or on the run: counts answers that differ.

    python -m benchmarks.decode.exact --questions spec_bench/question.jsonl --out exact.jsonl

Every preset answers all questions, `--at-once` of them in a batch, then all presets mixed, then a
few questions one at a time; greedily and at temperature 1. The first run of plain decoding at each
temperature is the reference. Each row also says how many drafts were accepted: a preset that drafts
nothing proves nothing.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.rows import rows_file
from graft import Engine, Request, Result, SamplingParams, load


def main() -> None:
    """Load the model, ask, print and keep a row for each preset and batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's shape")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--draft-model", help="for presets with one, such as sd")
    parser.add_argument("--head", default="auto", help="draft head of the presets with one")
    parser.add_argument("--presets", default="plain,auto,copy,casd,eagle2")
    parser.add_argument("--limit", type=int, default=480)
    parser.add_argument("--singles", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = options.questions.read_text().splitlines()[: options.limit]
    questions = [json.loads(line)["turns"][0] for line in lines]
    engine = load(
        options.model,
        draft_model=options.draft_model,
        head=options.head,
        dtype=options.dtype,
        device=options.device,
        max_batch=options.at_once,
        prefix_cache=0,
    )
    with rows_file("exact", options) as file:
        for row in compared(engine, questions, options):
            print(json.dumps(row), flush=True)
            file.row(row)


def compared(
    engine: Engine, questions: list[str], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """A row for each temperature, preset and batch."""
    presets = options.presets.split(",")
    every = range(len(questions))
    some = every[:: max(1, len(questions) // options.singles)]
    runs = [(preset, every, options.at_once) for preset in (*presets, "auto", "plain", "mixed")]
    runs += [(preset, some, 1) for preset in (*presets, "auto")]
    for temperature in (0.0, 1.0):
        expected: dict[int, list[int]] = {}
        for name, which, at_once in runs:
            chosen = {i: presets[i % len(presets)] if name == "mixed" else name for i in which}
            params = SamplingParams(max_tokens=options.max_tokens, temperature=temperature)
            requests = [_request(questions[i], i, chosen[i], params) for i in which]
            started = time.perf_counter()
            results = generate(engine, requests, at_once)
            seconds = time.perf_counter() - started
            given = {i: list(result.token_ids) for i, result in zip(which, results, strict=True)}
            expected = expected or given
            yield {
                "temperature": temperature,
                "preset": name,
                "at_once": at_once,
                "answers": len(given),
                "differ": sum(tokens != expected[i] for i, tokens in given.items()),
                "seconds": round(seconds, 2),
                **_counts(results),
            }


def generate(engine: Engine, requests: list[Request], at_once: int) -> list[Result]:
    """All requests queued, or one after the other."""
    if at_once > 1:
        return engine.generate(requests)
    return [engine.generate(request) for request in requests]


def _request(question: str, seed: int, preset: str, params: SamplingParams) -> Request:
    return Request([{"role": "user", "content": question}], replace(params, seed=seed), preset)


def _counts(results: list[Result]) -> dict[str, int]:
    return {
        "tokens": sum(len(result.token_ids) for result in results),
        "steps": sum(result.stats.steps for result in results),
        "accepted": sum(result.stats.num_accepted_draft_tokens for result in results),
    }


if __name__ == "__main__":
    main()
