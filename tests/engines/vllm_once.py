"""Answers what stdin asks with one vLLM engine: [model, speculation, options, prompts, tokens,
fields of the prompts]."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from vllm_engine import generate, make_engine

if __name__ == "__main__":
    model, speculation, options, prompts, max_tokens, fields = json.load(sys.stdin)
    run = generate(make_engine(Path(model), speculation, **options), prompts, max_tokens, fields)
    print(json.dumps(asdict(run)))  # noqa: T201
