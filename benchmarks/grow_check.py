"""The two gates of a grown model (`grow.py`): the ungrown model's text, the real shape's step time.

    python -m benchmarks.grow_check --model qwen2.5-coder-1.5b --grown grown --questions FILE
    python -m benchmarks.grow_check --model qwen2.5-coder-1.5b --grown grown-kv --questions FILE

Text: greedy answers are equal, or differ first at a tie, where the ungrown model's
log-probabilities of the two tokens are at most `TIE` apart: longer sums are rounded differently.
Step time: within 10 % of the real shape's with random weights. A grown model with several times
the KV cache per token is compared with the real shape at so many times the context. The exit code
is 1 if a gate fails.
"""

import argparse
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.settings import KernelPlan
from benchmarks.kernels.steps import Stepper, fastest
from benchmarks.likelihood import log_likelihood
from benchmarks.rows import rows_file
from graft import Engine, SamplingParams, load
from graft.bench.simulate.shapes import Shape, read_shape
from graft.bench.sizes import size
from graft.models.checkpoints.pretrained import locate, widened
from graft.models.load import find_device

TIE = 0.25  # nats: two roundings of a bf16 logit between 16 and 32
TOLERANCE = 0.1  # of the real shape's step time


def main() -> int:
    """Print and keep a row for each answer and context; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the ungrown model")
    parser.add_argument("--grown", required=True, help="the grown model's folder")
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's shape")
    parser.add_argument("--shape", default="llama-8b", help="whose step time is the aim")
    parser.add_argument("--contexts", default="2k,8k,31k", help="of the grown model")
    parser.add_argument("--limit", type=int, default=40, help="questions")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.questions.is_file():
        parser.error(f"{options.questions} does not exist; give Spec-Bench's question.jsonl")
    failed = 0
    with rows_file("grown", options) as file:
        for row in checked(options):
            print(json.dumps(row), flush=True)
            file.row(row)
            failed += not row["passed"]
    print(f"{failed} checks failed" if failed else "both gates passed")
    return 1 if failed else 0


def checked(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of both gates."""
    lines = options.questions.read_text().splitlines()[: options.limit]
    questions = [json.loads(line)["turns"][0] for line in lines]
    small, grown = (_engine(name, options) for name in (options.model, options.grown))
    yield from compared_texts(small, grown, questions, options.max_tokens)
    del small
    real, contexts = read_shape(options.shape), [size(each) for each in options.contexts.split(",")]
    factor = kv_factor(grown_shape(options.grown), real)
    own = _step_times(grown, grown_shape(options.grown), contexts, options)
    del grown
    gc.collect()
    aims = _step_times(None, real, [factor * context for context in contexts], options)
    for context, seconds, aim in zip(contexts, own, aims, strict=True):
        yield judged(context, factor * context, seconds, aim)


def compared_texts(
    small: Engine, grown: Engine, questions: list[str], max_tokens: int
) -> Iterator[dict[str, Any]]:
    """A row for each question."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    for number, question in enumerate(questions):
        prompt = small.encoder.prompt([{"role": "user", "content": question}]).tokens
        answers = [engine.generate(prompt, params).token_ids for engine in (small, grown)]
        row = {"gate": "text", "question": number, "passed": True}
        pairs = enumerate(zip(*answers, strict=True))
        tie = next((place for place, tokens in pairs if len(set(tokens)) > 1), None)
        if tie is not None:
            before = [*prompt, *answers[0][:tie]]
            own, other = (sum(log_likelihood(small, before, [each[tie]])) for each in answers)
            row |= {"differs_at": tie, "gap": round(own - other, 3), "passed": own - other <= TIE}
        yield row


def judged(context: int, real_context: int, seconds: float, aim: float) -> dict[str, Any]:
    """The row of a step time."""
    return {
        "gate": "step",
        "context": context,
        "real_context": real_context,
        "ms": round(1000 * seconds, 3),
        "real_ms": round(1000 * aim, 3),
        "ratio": round(seconds / aim, 3),
        "passed": abs(seconds / aim - 1) <= TOLERANCE,
    }


def grown_shape(model: str) -> Shape:
    """The sizes in a checkpoint's config."""
    config = json.loads((widened(locate(model)).folder / "config.json").read_text())
    return Shape(
        Path(model).name,
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
        config["num_hidden_layers"],
        config["hidden_size"],
        config["intermediate_size"],
        config["vocab_size"],
        tied=config.get("tie_word_embeddings", False),
    )


def kv_factor(grown: Shape, real: Shape) -> int:
    """How many of the real shape's tokens have the KV cache of one grown token, rounded."""
    one, other = (shape.layers * shape.kv_numbers(1) for shape in (grown, real))
    return max(1, round(one / other))


def _step_times(
    engine: Engine | None, shape: Shape, contexts: list[int], options: argparse.Namespace
) -> list[float]:
    """Seconds of a step at each context: of the engine's network, or of random weights."""
    plan = KernelPlan(
        shape=shape,
        contexts=contexts,
        nodes=(1,),
        dtype=options.dtype,
        device=find_device(options.device),
        parts=("step",),
        repeats=options.repeats,
    )
    make = (lambda _: (engine.model.forward, shape.name)) if engine else fastest
    stepper = Stepper.open(plan, make)
    return [stepper.time(context, 1)[0] for context in contexts]


def _engine(model: str, options: argparse.Namespace) -> Engine:
    torch.manual_seed(0)
    return load(model, dtype=options.dtype, device=options.device, draft="plain", head=None)


if __name__ == "__main__":
    sys.exit(main())
