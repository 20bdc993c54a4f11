"""Sampling parameters; apart from `sampling.py`, so that checking them needs no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from graft.errors import InputError

GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample and when to stop.

    Applied in this order: penalties, `logit_bias`, temperature, top-k, top-p, min-p. Temperature 0
    takes the most likely token. `repetition_penalty` counts tokens of prompt and output, the other
    penalties those of the output. `stop` are strings that end the answer and are not part of it.
    Without a `seed` one is chosen; `Result.seed` has it. `logprobs` adds the probability of each
    token and of this many alternatives to its `TokenEvent`. `n` answers the same prompt n times.
    Raises InputError for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0 = all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int = 256
    seed: int | None = None
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is None and name == "logprobs":
                continue
            kind = int if name == "n" else int | float
            if isinstance(value, bool) or not isinstance(value, kind):
                raise InputError(f"{name} must be a number, not {value!r}")
            if not (low <= value <= high):
                raise InputError(f"{name} must be between {low} and {high}, not {value}")
        if self.top_p <= 0 or self.repetition_penalty <= 0:
            raise InputError("top_p and repetition_penalty must be greater than 0")
        if self.seed is not None and (
            not isinstance(self.seed, int) or not -(1 << 63) <= self.seed < 1 << 64
        ):
            raise InputError(f"seed must be a whole number of at most 64 bits, not {self.seed!r}")
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise InputError("stop must hold non-empty strings")
        if any(not math.isfinite(bias) and bias != -math.inf for bias in self.logit_bias.values()):
            raise InputError("logit_bias values must be finite or -inf")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        """Whether the distribution depends on which tokens were used before."""
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)


_RANGES = (
    ("temperature", 0, 100),
    ("top_k", 0, 1 << 31),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("repetition_penalty", 0, 100),
    ("presence_penalty", -100, 100),
    ("frequency_penalty", -100, 100),
    ("max_tokens", 1, 1 << 31),
    ("logprobs", 0, 100),
    ("n", 1, 1024),
)
