"""Statistics of a request; names follow vLLM's per-request speculation metrics."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.tree.draft_tree import DraftTree

clock = time.perf_counter  # the only clock of the engine


@dataclass(slots=True)
class Stats:
    """Counts and times of one answer. A step is one target forward after the prefill.

    `cached_tokens` of the prompt came from the prefix cache. A draft head could not use
    `unseen_tokens` of the prompt, cached by requests without it. With `approximate`, some keys and
    values are not those the model would compute: those of `approximate_tokens` prompt tokens.
    `tokens` are generated ones. Steps up to the first token count as `prefill_seconds`, later ones
    as `decode_seconds`; a step shared with other requests counts whole. Sources are drafters'
    names; positions count from 1, the first draft token. The `inner_*` counts are those of a
    drafter's own draft model or lookup.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    approximate: bool = False
    approximate_tokens: int = 0
    unseen_tokens: int = 0
    tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    per_step_drafted: list[int] = field(default_factory=list)
    per_step_accepted: list[int] = field(default_factory=list)
    accepted_by_source: Counter[str] = field(default_factory=Counter)
    drafted_by_source: Counter[str] = field(default_factory=Counter)
    accepted_by_position: Counter[int] = field(default_factory=Counter)
    inner_drafted_by_source: Counter[str] = field(default_factory=Counter)
    inner_accepted_by_source: Counter[str] = field(default_factory=Counter)

    def count_step(self, tree: DraftTree, accepted: list[str]) -> None:
        """Count a step with this draft tree; `accepted` are the sources of the accepted nodes."""
        drafted = len(tree) - 1
        self.per_step_drafted.append(drafted)
        self.per_step_accepted.append(len(accepted))
        if drafted:
            self.accepted_by_source.update(accepted)
            self.accepted_by_position.update(range(1, len(accepted) + 1))
            counts = np.bincount(tree.sources[1:], minlength=len(tree.source_names)).tolist()
            for name, count in zip(tree.source_names, counts, strict=True):
                if count:
                    self.drafted_by_source[name] += count

    @classmethod
    def together(cls, every: "Iterable[Stats]") -> "Stats":
        """The sums of several answers' step counts."""
        whole = cls()
        for stats in every:
            whole.per_step_drafted += stats.per_step_drafted
            whole.per_step_accepted += stats.per_step_accepted
            whole.accepted_by_source.update(stats.accepted_by_source)
            whole.drafted_by_source.update(stats.drafted_by_source)
            whole.accepted_by_position.update(stats.accepted_by_position)
        return whole

    @property
    def steps(self) -> int:
        """Target forwards after the prefill."""
        return len(self.per_step_drafted)

    @property
    def num_draft_tokens(self) -> int:
        """Draft tokens that the target verified."""
        return sum(self.per_step_drafted)

    @property
    def num_accepted_draft_tokens(self) -> int:
        """Draft tokens that the target accepted."""
        return sum(self.per_step_accepted)

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens per step, the target's own included (1.0 = plain decoding)."""
        return 1 + self.num_accepted_draft_tokens / self.steps if self.steps else 1.0

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed; the first token belongs to the prefill."""
        return (self.tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """As JSON-ready values; `graft run --json` prints them as `stats`."""
        drafted, accepted = self.num_draft_tokens, self.num_accepted_draft_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "approximate": self.approximate,
            "approximate_tokens": self.approximate_tokens,
            "unseen_tokens": self.unseen_tokens,
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_step": self.tokens_per_step,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "tokens_per_second": self.tokens_per_second,
            "accepted_by_source": dict(self.accepted_by_source),
            "drafted_by_source": dict(self.drafted_by_source),
            "inner_accepted_by_source": dict(self.inner_accepted_by_source),
            "inner_drafted_by_source": dict(self.inner_drafted_by_source),
            "speculative_decoding": {
                "mean_acceptance_length": self.tokens_per_step,
                "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
                "acceptance_histogram": _histogram(self.per_step_accepted),
                "num_spec_steps": self.steps,
                "num_accepted_draft_tokens": accepted,
                "num_draft_tokens": drafted,
                "num_spec_tokens": max(self.per_step_drafted, default=0),
                "per_step_accepted": self.per_step_accepted,
                "per_step_drafted": self.per_step_drafted,
            },
        }


def _histogram(accepted: list[int]) -> list[int]:
    """[a] is the number of steps with a accepted draft tokens."""
    counts = Counter(accepted)
    return [counts[a] for a in range(max(accepted, default=-1) + 1)]
