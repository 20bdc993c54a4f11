"""Graft worker: `method` is the draft preset (plain, auto, ...), `rag` or `rag+PRESET`.

One prompt is streamed and timed from outside, like the other engines. Several go through
`engine.generate` together. What the engine would keep of a prompt for later ones is switched off.
"""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import protocol

if TYPE_CHECKING:
    from graft import Engine, Result


def main() -> None:
    """Load the model and answer until stdin closes."""
    options = protocol.parser(__doc__)
    options.add_argument("--draft-model")
    options.add_argument("--head", default="auto")
    options.add_argument("--context-length", type=int, help="of the models; their own if not given")
    options.add_argument("--draft", default="auto")
    options.add_argument("--verifier", default="walk")
    options.add_argument("--eta", type=float, help="how strong the verifier is")
    options.add_argument("--load-options", type=json.loads, default={})
    chosen = options.parse_args()
    channel = protocol.private_stdout()
    import torch

    import graft
    from graft.models.step_costs import costs_are_given

    torch.set_num_threads(chosen.threads)
    options = {"max_batch": chosen.batch, "prefix_cache": 0, **chosen.load_options}
    engine = graft.load(
        chosen.model,
        draft_model=chosen.draft_model,
        head=None if chosen.head == "none" else chosen.head,
        dtype=chosen.dtype,
        device=chosen.device,
        context_length=chosen.context_length,
        draft=chosen.draft,
        verifier=chosen.verifier,
        shift=None if chosen.eta is None else graft.Shift(eta=chosen.eta),
        **options,
    )
    settings = {
        "dtype": engine.dtype,
        "device": engine.device,
        "threads": chosen.threads,
        "forward": engine.loaded.forward_name,
        "context_length": engine.context_length,
        "stretched": engine.loaded.stretched is not None,
        "max_batch": options["max_batch"],
        "draft_model": chosen.draft_model,
        "verifier": chosen.verifier,
        "eta": chosen.eta,
        "load_options": chosen.load_options,
        "heads": [name for name in ("eagle2", "longspec") if name in engine.presets],
        "prefix_cache": options["prefix_cache"],
        "costs": engine.loop.costs.as_dict(),
        "paced": not costs_are_given(),
    }
    ready = protocol.about(("torch", "transformers", "numba", "numpy"), settings)
    ready["versions"]["graft"] = graft.__version__
    known = bool(options["prefix_cache"])
    protocol.serve(Answers(engine, prompts_are_known=known), channel, ready)


class Answers:
    """Answers requests; what shortens prompts is made when it is first needed. Where prompts are to
    be known, in a prefix cache, they are read before, and decoding alone is timed."""

    def __init__(self, engine: "Engine", *, prompts_are_known: bool = False) -> None:
        self._engine, self._prompts_are_known = engine, prompts_are_known
        self._shorten: Any = None

    def __call__(self, request: dict) -> dict:
        """A request for answers, or for the likelihood of gold."""
        from graft.bench.systems import RAG, preset_of

        if self._prompts_are_known and "gold" not in request:
            together(self._engine, self._reading(request))
        begun = time.perf_counter()
        method = request["method"]
        request = {**request, "method": preset_of(method)}
        if method.partition("+")[0] != RAG:
            return told(self._engine, request)
        request["prompts"] = [self._short(prompt) for prompt in request["prompts"]]
        took = time.perf_counter() - begun
        found = told(self._engine, request)
        for name in ("prefill_seconds", "total_seconds"):  # finding passages is part of reading
            if found.get(name) is not None:
                found[name] += took
        return {**found, "read_tokens": sum(map(len, request["prompts"]))}

    def _reading(self, request: dict) -> dict:
        """One that reads the prompts: by the model, and by a draft model, which reads them piece
        by piece while the first tokens are written."""
        from graft.bench.systems import preset_of

        method = preset_of(request["method"])
        pieces = sum(map(len, request["prompts"])) // self._engine.model.chunk
        rounds = 1 if method == "plain" else 3 + pieces
        return {**request, "method": method, "max_tokens": min(rounds, request["max_tokens"])}

    def _short(self, prompt: list[int]) -> list[int]:
        from graft.bench.short_prompts import shortened, shortener

        self._shorten = self._shorten or shortener(self._engine.loaded.tokenizer)
        return shortened(self._shorten, prompt)


def told(engine: "Engine", request: dict) -> dict:
    """What was asked for."""
    return likelihoods(engine, request) if "gold" in request else answer(engine, request)


def likelihoods(engine: "Engine", request: dict) -> dict:
    """log p of every gold answer as a whole."""
    from graft.decode.likelihood import log_likelihood

    pairs = zip(request["prompts"], request["gold"], strict=True)
    return {"log_likelihoods": [sum(log_likelihood(engine, *pair)) for pair in pairs]}


def answer(engine: "Engine", request: dict) -> dict:
    """Times are a caller's; counts are the engine's own."""
    from graft.decode.stats import Stats

    if len(request["prompts"]) == 1:
        results, clock = one(engine, request)
    else:
        results, clock = together(engine, request)
    counts = Stats.together(result.stats for result in results)
    return {
        "token_ids": [list(result.token_ids) for result in results],
        "finish_reasons": [result.finish_reason for result in results],
        **clock,
        "steps": counts.steps,
        "drafted": counts.num_draft_tokens,
        "drafted_by_source": dict(counts.drafted_by_source),
        "accepted_by_source": dict(counts.accepted_by_source),
        "accepted_by_position": dict(counts.accepted_by_position),
    }


def one(engine: "Engine", request: dict) -> tuple[list["Result"], dict]:
    """Token by token."""
    start = time.perf_counter()
    stream = engine.stream(request["prompts"][0], params(request, 0), draft=request["method"])
    first_at = None
    for _ in stream:
        first_at = first_at or time.perf_counter()
    end = time.perf_counter()
    clock = {"prefill_seconds": (first_at or end) - start, "total_seconds": end - start}
    return [stream.result], {**clock, "first_tokens": 1}


def together(engine: "Engine", request: dict) -> tuple[list["Result"], dict]:
    """All prompts as one batch; of more than run at once, which wait in a queue, all of the time is
    decoding, for some are read while others are written."""
    from graft import Request

    clock = FirstTokens(len(request["prompts"]))
    batch = [
        Request(
            prompt,
            params(request, place),
            draft=request["method"],
            stop_when=clock.watching(place),
        )
        for place, prompt in enumerate(request["prompts"])
    ]
    start = time.perf_counter()
    results = engine.generate(batch)
    total_seconds = time.perf_counter() - start
    if len(batch) > engine.max_batch:
        whole = {"prefill_seconds": 0.0, "total_seconds": total_seconds, "first_tokens": 0}
        return results, whole
    prefill_seconds = clock.all_at - start if clock.all_at else None
    times = {"prefill_seconds": prefill_seconds, "total_seconds": total_seconds}
    return results, {**times, "first_tokens": clock.tokens if clock.all_at else 0}


class FirstTokens:
    """Notes when every answer of a batch has begun, and how many tokens had come by then.

    An answer that ends with its first token is never asked about: then nobody knows.
    """

    def __init__(self, count: int) -> None:
        self.waiting = set(range(count))
        self.tokens = 0
        self.all_at: float | None = None

    def watching(self, place: int) -> Callable[[list[int], object], bool]:
        """What the engine asks after every token of an answer; it never ends one."""

        def seen(token_ids: list[int], logits: object) -> bool:
            if self.all_at is None:
                self.tokens += 1
                self.waiting.discard(place)
                self.all_at = None if self.waiting else time.perf_counter()
            return False

        return seen


def params(request: dict, place: int) -> object:
    """Greedy at temperature 0; above it the model's own distribution, drawn by the seed."""
    from graft import SamplingParams

    return SamplingParams(
        temperature=request["temperature"],
        max_tokens=request["max_tokens"],
        stop_token_ids=tuple(request["end_tokens"]),
        ignore_eos=not request["end_tokens"],
        seed=request["seeds"][place],
    )


if __name__ == "__main__":
    main()
