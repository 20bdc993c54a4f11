"""What a model answered before, as texts for a datastore: the history of a service.

    python -m benchmarks.datastore.answers MODEL --suite medqa=FOLDER \\
        --suite spider=FOLDER --out a.jsonl

Answers the tuning half of each suite's prompts, greedily, in batches, and writes one JSON line
{"text", "suite"} each. `python -m benchmarks decode` reports on the other half.
"""

import argparse
import json
from pathlib import Path

import graft
from benchmarks.suites.task import read_suite, select
from graft import SamplingParams


def main() -> None:
    """Answer, write."""
    options = _options()
    engine = graft.load(options.model, dtype=options.dtype, device=options.device, prefix_cache=0)
    params = SamplingParams(max_tokens=options.max_tokens)
    with options.out.open("w") as out:
        for name, data in options.suite:
            prompts = select(read_suite(name, data), limit=options.limit, split="tune")
            results = engine.generate([prompt.content for prompt in prompts], params)
            out.writelines(
                json.dumps({"text": result.text, "suite": name}) + "\n" for result in results
            )
            print(f"{name}: {len(results)} answers", flush=True)


def suite_of(given: str) -> tuple[str, Path]:
    """NAME=DATA as typed."""
    name, _, data = given.partition("=")
    return name, Path(data)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--suite", type=suite_of, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=200, help="prompts of a category")
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
