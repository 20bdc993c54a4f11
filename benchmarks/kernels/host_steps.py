"""What the host does for every token when many requests run at once, on any machine.

    python -m benchmarks.kernels.host_steps --batch 128 --requests 512 --tokens 200

Everything is as on a GPU (the plan of a step, its buffer, the step in flight) but the network: its
logits are rows of a table, so that the time is the host's own. One line for the whole and one for
each part of a step, in microseconds per token.
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

os.environ.setdefault("TRITON_INTERPRET", "1")  # no kernel runs; the import needs a driver or this

import graft
from graft import Request, SamplingParams
from graft.assemble.loading import engine_around
from graft.decode import loop
from graft.decode.in_flight import InFlightStep
from graft.models.device_step import DeviceStep
from graft.models.forward_graphed import GraphedForward
from graft.models.language_model import LanguageModel
from graft.models.step_costs import REFERENCE, StepCosts
from graft.models.storage import LazyRowStorage
from graft.verify.draws import Draws

VOCABULARY = 512  # drawing from more takes time that a GPU would take
ROWS = 1 << 19
PARTS = {
    "draft": (loop.DecodeLoop, "_draft"),
    "score": (LanguageModel, "score_all"),
    "draw": (Draws, "__init__"),
    "complete": (InFlightStep, "complete"),
    "emit": (InFlightStep, "emit"),
    "collect": (loop.Scheduler, "collect_finished"),
    "admit": (loop.Scheduler, "admit"),
}


class Table:
    """In place of a network's layers: logits by position and token."""

    group = 3

    def __init__(self) -> None:
        self.storage = LazyRowStorage(1, 3, 16, torch.bfloat16, torch.device("cpu"))
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(1021, VOCABULARY, generator=generator)
        self.head = torch.zeros(VOCABULARY, 1)
        self.sizes: list[int] = []  # nodes of each step

    def reach(self, positions: int) -> bool:  # noqa: ARG002
        """Tables of angles there are none."""
        return False

    def features(self, step: DeviceStep, kept: Mapping[int, Tensor]) -> Tensor:  # noqa: ARG002
        """[N] which row of the table each node gets."""
        self.sizes.append(len(step.tokens))
        return (step.positions * 7 + step.tokens) % len(self.table)

    def logits(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        """[M, V] of the table."""
        found = self.table[features]
        return found if out is None else out.copy_(found)

    def compute_first(self, step: DeviceStep, layers: int) -> None:
        """See Layers: there are no keys and values."""

    def frequencies(self) -> list[Tensor]:
        """See Forward."""
        return []

    def weighs_plainly(self, layer: int, tokens: int) -> bool:  # noqa: ARG002
        """See Forward."""
        return True

    def embed(self, tokens: Tensor) -> Tensor:
        """See Forward."""
        return tokens.unsqueeze(-1).float()


def main() -> None:
    """Run once to warm up, then measure."""
    options = _options()
    torch.set_num_threads(1)
    engine, requests = _engine(options), _requests(options)
    engine.generate(requests[: options.batch])
    spent = _watch() if options.parts else Counter()
    table = engine.model.forward.layers
    table.sizes.clear()
    start = time.process_time()
    results = engine.generate(requests)
    seconds = time.process_time() - start
    tokens = sum(len(result.token_ids) for result in results)
    large = sum(size > GraphedForward.sizes[-1] for size in table.sizes)
    print(f"{tokens} tokens, {len(table.sizes)} steps, {large} of them too large for a graph")
    for name, value in [("all", seconds), *spent.items()]:
        print(f"{name:8}{1e6 * value / tokens:8.1f} µs a token")


def _engine(options: argparse.Namespace) -> Any:  # noqa: ANN401
    forward = GraphedForward(Table())
    forward.asynchronous = True
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=4096, chunk=2048)
    model.arena.hold(ROWS)
    model.prefixes.use(max_rows=options.kept)
    loaded = replace(graft.load(options.model).loaded, model=model)
    costs = StepCosts.read(REFERENCE)
    return engine_around(loaded, costs, draft=options.draft, max_batch=options.batch)


def _requests(options: argparse.Namespace) -> list[Request]:
    random = np.random.default_rng(0)
    params = SamplingParams(ignore_eos=True, temperature=options.temperature, seed=1)
    head = random.integers(3, VOCABULARY, 20).tolist()  # a template's first words
    prompts, answers = (
        random.integers(length // 2, 3 * length // 2, options.requests).tolist()
        for length in (options.prompt, options.tokens)
    )
    return [
        Request(
            [*head, *random.integers(3, VOCABULARY, prompt).tolist()],
            replace(params, max_tokens=answer),
        )
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def _watch() -> Counter[str]:
    """Count the seconds of every part from now on; those of a part within another twice."""
    spent: Counter[str] = Counter()
    for name, (owner, method) in PARTS.items():
        setattr(owner, method, _timed(getattr(owner, method), name, spent))
    return spent


def _timed(method: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        start = time.perf_counter()
        try:
            return method(*arguments, **options)
        finally:
            spent[name] += time.perf_counter() - start

    return timed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer to use")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=200, help="of an answer, give or take half")
    parser.add_argument("--prompt", type=int, default=100, help="its tokens, give or take half")
    parser.add_argument("--kept", type=int, default=300_000, help="rows of ended sequences")
    parser.add_argument("--draft", default="plain")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--parts", action="store_true", help="also by part (slower)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
