"""Graft's own engine, measured in this process through the requests of engines/protocol.py.

One prompt is streamed; several run through `engine.generate` as one batch. The prefix cache should
be off (`prefix_cache=0`), so that every request prefills its prompt.
"""

import time
from collections.abc import Callable
from typing import Any

from graft import Engine, Request, Result, SamplingParams
from graft.bench.about import versions
from graft.decode.request import StopWhen
from graft.decode.stats import Stats
from graft.models.heads.config import KINDS


class GraftEngine:
    """Answers requests; `method` is the draft preset, `options` are more fields of a Request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.warm: set[object] = set()
        self.about = {"versions": versions(), "settings": _settings(engine)}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Times as a caller measures them, counts of the engine."""
        several = len(request["prompts"]) > 1
        results, times = self._batch(request) if several else self._stream(request)
        counts = Stats.together(result.stats for result in results)
        return {
            "token_ids": [list(result.token_ids) for result in results],
            "finish_reasons": [result.finish_reason for result in results],
            **times,
            "steps": counts.steps,
            "drafted": counts.num_draft_tokens,
            "drafted_by_source": dict(counts.drafted_by_source),
            "accepted_by_source": dict(counts.accepted_by_source),
            "accepted_by_position": {str(n): c for n, c in counts.accepted_by_position.items()},
        }

    def _stream(self, request: dict[str, Any]) -> tuple[list[Result], dict[str, Any]]:
        start = time.perf_counter()
        stream = self.engine.submit(_request(request, 0))
        first_at = None
        for _ in stream:
            first_at = first_at or time.perf_counter()
        end = time.perf_counter()
        times = {"prefill_seconds": (first_at or end) - start, "total_seconds": end - start}
        return [stream.result], {**times, "first_tokens": 1}

    def _batch(self, request: dict[str, Any]) -> tuple[list[Result], dict[str, Any]]:
        """All prompts at once. Where more are given than run at once, the others are queued and
        all of the time counts as decoding."""
        clock = _FirstTokens(len(request["prompts"]))
        batch = [
            _request(request, place, stop_when=clock.watch(place))
            for place in range(len(request["prompts"]))
        ]
        start = time.perf_counter()
        results = self.engine.generate(batch)
        total = time.perf_counter() - start
        if len(batch) > self.engine.max_batch:
            return results, {"prefill_seconds": 0.0, "total_seconds": total, "first_tokens": 0}
        prefill = clock.all_at - start if clock.all_at else None
        first_tokens = clock.tokens if clock.all_at else 0
        times = {"prefill_seconds": prefill, "total_seconds": total}
        return results, {**times, "first_tokens": first_tokens}


class _FirstTokens:
    """Records when every sequence of a batch has its first token, and how many tokens exist then.

    A sequence that ends with its first token is not reported: then both stay unknown.
    """

    def __init__(self, count: int) -> None:
        self.waiting = set(range(count))
        self.tokens = 0
        self.all_at: float | None = None

    def watch(self, place: int) -> Callable[[list[int], object], bool]:
        """A `stop_when` of one sequence that never stops it."""

        def seen(token_ids: list[int], logits: object) -> bool:
            if self.all_at is None:
                self.tokens += 1
                self.waiting.discard(place)
                self.all_at = None if self.waiting else time.perf_counter()
            return False

        return seen


def _request(request: dict[str, Any], place: int, **more: StopWhen) -> Request:
    """What the engine gets for one of the prompts."""
    params = SamplingParams(
        temperature=request["temperature"],
        max_tokens=request["max_tokens"],
        stop_token_ids=tuple(request["end_tokens"]),
        ignore_eos=not request["end_tokens"],
        seed=request["seeds"][place],
    )
    options = {**request.get("options", {}), **more}
    return Request(request["prompts"][place], params, draft=request["method"], **options)


def _settings(engine: Engine) -> dict[str, Any]:
    """What is needed to repeat the run, and the step costs that `graft simulate` replays."""
    from graft.models.step_costs import costs_are_given

    return {
        "dtype": engine.dtype,
        "device": engine.device,
        "forward": engine.loaded.forward_name,
        "context_length": engine.context_length,
        "stretched": engine.loaded.stretched is not None,
        "max_batch": engine.max_batch,
        "heads": [name for name in KINDS if name in engine.presets],
        "costs": engine.loop.costs.as_dict(),
        "paced": not costs_are_given(),
    }
