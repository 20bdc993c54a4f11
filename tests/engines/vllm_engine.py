"""A vLLM engine in this process, stepped by hand, and what its requests came to."""

import os
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of each prompt, and what was drafted and accepted for all of them, by source too."""

    tokens: list[list[int]]
    drafted: int
    accepted: int
    steps: int
    sources: dict[str, float]


def make_engine(model: Path, speculation: dict | None, **options: object) -> object:
    os.environ.update(
        {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    )
    from vllm import LLM

    return LLM(
        model=str(model),
        dtype="float32",
        max_model_len=2048,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        enforce_eager=True,
        disable_log_stats=False,
        speculative_config=speculation,
        **options,
    )


def generate(
    llm: object, prompts: list[list[int]], max_tokens: int, fields: list | None = None
) -> Run:
    """Answer prompts, each with its own field `graft` if there are fields."""
    from vllm import SamplingParams

    before = counted(llm)
    parameters = [
        SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            extra_args={"graft": fields[at]} if fields else None,
        )
        for at in range(len(prompts))
    ]
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], parameters, use_tqdm=False
    )
    after = counted(llm)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    numbers = (after[name] - before[name] for name in ("draft", "accepted", "steps"))
    return Run(tokens, *numbers, accepted_by_source())


def counted(llm: object) -> dict[str, int]:
    """vLLM's own counters."""
    names = {
        "vllm:spec_decode_num_draft_tokens": "draft",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
        "vllm:spec_decode_num_drafts": "steps",
    }
    found = dict.fromkeys(names.values(), 0)
    for metric in llm.get_metrics():
        if metric.name in names:
            found[names[metric.name]] += metric.value
    return found


def accepted_by_source() -> dict[str, float]:
    """Graft's counters among vLLM's metrics, of this process."""
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    return {
        sample.labels["source"]: sample.value
        for metric in get_prometheus_registry().collect()
        for sample in metric.samples
        if sample.name == "graft:accepted_tokens_total"
    }
