"""`usage` as OpenAI and `metrics` as vLLM define them."""

from collections.abc import Sequence
from typing import Any

from graft.decode.output import Result
from graft.decode.stats import Stats
from graft.verify.verdict import Promise


def usage(results: Sequence[Sequence[Result]]) -> dict[str, Any]:
    """OpenAI's `usage`; `results` has the answers to each prompt, and a prompt counts once."""
    firsts = [answers[0].stats for answers in results]
    every = [answer.stats for answers in results for answer in answers]
    prompt = sum(stats.prompt_tokens for stats in firsts)
    completion = sum(stats.tokens for stats in every)
    drafted = sum(stats.drafted_by_source["prediction"] for stats in every)
    accepted = sum(stats.accepted_by_source["prediction"] for stats in every)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(stats.cached_tokens for stats in firsts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def usage_and_metrics(
    results: Sequence[Sequence[Result]], *, steps: bool = False
) -> dict[str, Any]:
    """Both fields of a response."""
    return {"usage": usage(results), "metrics": metrics_block(results, steps=steps)}


def request_line(results: Sequence[Sequence[Result]]) -> str:
    """A finished request for the log."""
    counts = usage(results)
    every = [answer.stats for answers in results for answer in answers]
    drafted = sum(stats.num_draft_tokens for stats in every)
    accepted = sum(stats.num_accepted_draft_tokens for stats in every)
    reasons = sorted({answer.finish_reason for answers in results for answer in answers})
    parts = [
        f"{counts['prompt_tokens']:,} prompt tokens",
        f"{counts['prompt_tokens_details']['cached_tokens']:,} cached",
        f"prefill {max(stats.prefill_seconds for stats in every):.2f} s",
        f"{counts['completion_tokens']:,} tokens",
        f"{sum(stats.tokens_per_second for stats in every):.1f} tokens/s",
        f"{accepted:,} of {drafted:,} draft tokens accepted",
    ]
    return f"{', '.join(parts)}: {', '.join(reasons)}"


def metrics_block(results: Sequence[Sequence[Result]], *, steps: bool = False) -> dict[str, Any]:
    """vLLM's `metrics` of a response, accepted tokens by source, and whether the answers are
    lossless; with `steps` also the drafted and accepted tokens of each step."""
    answers = [answer for several in results for answer in several]
    together = Stats.together(answer.stats for answer in answers).as_dict()
    block = together["speculative_decoding"]
    if not steps:
        for name in ("per_step_accepted", "per_step_drafted"):
            del block[name]
    return {
        "speculative_decoding": {
            **block,
            "lossless": all(answer.lossless and not answer.approximate for answer in answers),
            "promise": str(max((answer.promise for answer in answers), default=Promise.SAME_TEXT)),
            "approximate_tokens": sum(answer.stats.approximate_tokens for answer in answers),
        },
        "accepted_by_source": together["accepted_by_source"],
        "prefill_seconds": max((each.stats.prefill_seconds for each in answers), default=0.0),
        "decode_seconds": max((each.stats.decode_seconds for each in answers), default=0.0),
    }
