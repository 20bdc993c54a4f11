"""Draft tokens by source in vLLM's /metrics, as graft:draft_tokens and graft:accepted_tokens.

A source is the text that the first token of a draft was copied from: document, prediction, prompt,
output, store or pool; of drafts made on the GPU it is text, the request's own. The counters are in
the registry of vLLM's own metrics. The offline `LLM` with VLLM_ENABLE_V1_MULTIPROCESSING=0 is one
process, and nothing else is needed. `vllm serve` answers /metrics in another process than the one
that drafts: start it with PROMETHEUS_MULTIPROC_DIR=FOLDER, an empty folder, and prometheus_client
adds up all processes.
"""

from collections import Counter
from functools import cache
from typing import Any

import prometheus_client

SOURCES = ("document", "prediction", "prompt", "output", "store", "pool", "text")


class DraftCounters:
    """Counts the draft tokens of one process."""

    def __init__(self) -> None:
        self._drafted = _registered("graft:draft_tokens", "Draft tokens by source")
        self._accepted = _registered("graft:accepted_tokens", "Accepted draft tokens by source")

    def add(self, drafted: Counter[str], accepted: Counter[str]) -> None:
        """Count the tokens of a step, by source."""
        for source, count in drafted.items():
            self._drafted[source].inc(count)
        for source, count in accepted.items():
            self._accepted[source].inc(count)


@cache
def _registered(name: str, text: str) -> dict[str, Any]:
    """The counter of each source; a process has a name once, however many engines it starts."""
    counter = prometheus_client.Counter(name, text, ["source"])
    return {source: counter.labels(source) for source in SOURCES}
