"""Prometheus metrics with vLLM's names, so that dashboards and `vllm bench` work."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from graft.decode.engine import Engine
from graft.decode.stats import Stats
from graft.server.worker import Job

LABELS = ("model_name", "engine")
SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
COUNTERS = {
    "prompt_tokens": "Prompt tokens, prefilled or cached",
    "generation_tokens": "Tokens generated",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache",
    "spec_decode_num_drafts": "Steps with a draft",
    "spec_decode_num_draft_tokens": "Draft tokens",
    "spec_decode_num_accepted_tokens": "Accepted draft tokens",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": "Time from the request to its first token",
    "inter_token_latency_seconds": "Time between two tokens",
    "e2e_request_latency_seconds": "Time from the request to its last token",
    "request_prefill_time_seconds": "Time of the steps up to the first token",
    "request_decode_time_seconds": "Time of the steps after the first token",
}


class Metrics:
    """The metrics of one server."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": name, "engine": "0"}
        self._counters = {key: self._counter(key, text) for key, text in COUNTERS.items()}
        self._histograms = {
            key: Histogram(f"vllm:{key}", text, LABELS, registry=self._registry, buckets=SECONDS)
            .labels(**self._labels)
            for key, text in HISTOGRAMS.items()
        }  # fmt: skip
        self._finished = Counter(
            "vllm:request_success", "Finished requests by reason", (*LABELS, "finished_reason"),
            registry=self._registry,
        )  # fmt: skip
        self._by_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by depth",
            (*LABELS, "position"), registry=self._registry,
        )  # fmt: skip
        self._gauge("num_requests_running", "Running sequences").set_function(
            lambda: engine.running
        )
        self._gauge("num_requests_waiting", "Queued sequences").set_function(lambda: engine.waiting)
        self._gauge("kv_cache_usage_perc", "Share of the KV cache in use").set_function(
            lambda: engine.model.arena.usage
        )

    def exposition(self) -> bytes:
        """The text of `/metrics`."""
        return generate_latest(self._registry)

    def first_token(self, seconds: float) -> None:
        """A job has its first token."""
        self._histograms["time_to_first_token_seconds"].observe(seconds)

    def more_tokens(self, tokens: int, seconds: float) -> None:
        """A job has more tokens, so many seconds after the ones before."""
        for _ in range(tokens):
            self._histograms["inter_token_latency_seconds"].observe(seconds / tokens)

    def finished(self, job: Job) -> None:
        """A job is closed."""
        if job.last is not None:
            self._histograms["e2e_request_latency_seconds"].observe(job.last - job.since)
        for answers in job.results:
            first = answers[0].stats
            self._counters["prompt_tokens"].inc(first.prompt_tokens)
            self._counters["prefix_cache_queries"].inc(first.prompt_tokens)
            self._counters["prefix_cache_hits"].inc(first.cached_tokens)
            for answer in answers:
                self._count(answer.stats)
                reason = "abort" if answer.finish_reason == "cancelled" else answer.finish_reason
                self._finished.labels(**self._labels, finished_reason=reason).inc()

    def _count(self, stats: Stats) -> None:
        drafts = sum(1 for drafted in stats.per_step_drafted if drafted)
        self._counters["generation_tokens"].inc(stats.tokens)
        self._counters["spec_decode_num_drafts"].inc(drafts)
        self._counters["spec_decode_num_draft_tokens"].inc(stats.num_draft_tokens)
        self._counters["spec_decode_num_accepted_tokens"].inc(stats.num_accepted_draft_tokens)
        for depth, count in stats.accepted_by_position.items():
            self._by_position.labels(**self._labels, position=str(depth - 1)).inc(count)
        self._histograms["request_prefill_time_seconds"].observe(stats.prefill_seconds)
        self._histograms["request_decode_time_seconds"].observe(stats.decode_seconds)

    def _counter(self, name: str, text: str) -> Counter:
        made = Counter(f"vllm:{name}", text, LABELS, registry=self._registry)
        return made.labels(**self._labels)

    def _gauge(self, name: str, text: str) -> Gauge:
        made = Gauge(f"vllm:{name}", text, LABELS, registry=self._registry)
        return made.labels(**self._labels)
