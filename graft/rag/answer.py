"""The result of a session: the answer, its rounds and statistics."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from graft.decode.stats import Stats
from graft.rag.corpus import Hit

CUE = re.compile(r"the answer is", re.IGNORECASE)


def extract(text: str) -> str:
    """The text after the first "the answer is", without a colon and the last full stop; "" if there
    is none."""
    found = CUE.search(text)
    if not found:
        return ""
    return text[found.end() :].strip().removeprefix(":").strip().removesuffix(".").strip()


@dataclass(frozen=True, slots=True)
class Round:
    """One call of the model; `query` is None if it had no documents.

    `hits` are in the order of the search; `reordered` if the prompt has another order. `text` is
    the kept part of the output, `dropped` the rest. `reused` counts cached prompt tokens with exact
    rows by part; those with approximate rows are in `stats.approximate_tokens`. `judging_seconds`
    is the time of the policy.
    """

    number: int
    query: str | None
    reason: str
    hits: Sequence[Hit]
    reordered: bool
    text: str
    dropped: str
    reused: Mapping[str, int]
    retrieval_seconds: float
    judging_seconds: float
    stats: Stats

    def as_dict(self) -> dict[str, Any]:
        """The round for --json."""
        return {
            "round": self.number,
            "query": self.query,
            "reason": self.reason,
            "passages": [
                {"id": hit.passage.id, "source": hit.passage.source, "score": hit.score}
                for hit in self.hits
            ],
            "reordered": self.reordered,
            "text": self.text,
            "dropped": self.dropped,
            "prompt_tokens": self.stats.prompt_tokens,
            "tokens": self.stats.tokens,
            "steps": self.stats.steps,
            "reused": dict(self.reused),
            "approximate": self.stats.approximate,
            "approximate_tokens": self.stats.approximate_tokens,
            "retrieval_seconds": self.retrieval_seconds,
            "prefill_seconds": self.stats.prefill_seconds,
            "decode_seconds": self.stats.decode_seconds,
            "judging_seconds": self.judging_seconds,
        }


@dataclass(frozen=True, slots=True)
class Made:
    """The settings of an answer. `approximate`: reuse may have changed it; not `lossless`: drafting
    may have."""

    policy: str
    reuse: str
    draft: str
    approximate: bool
    lossless: bool
    guided: bool
    language: str  # splitter of sentences
    seed: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the rounds; cached rows of `reused_tokens` are exact, of `approximate_tokens`
    approximate. `demonstration_seconds` are not in `total_seconds`."""

    calls: int
    retrievals: int
    tokens: int
    dropped_tokens: int
    prompt_tokens: int
    reused_tokens: int
    approximate_tokens: int
    steps: int
    retrieval_seconds: float
    prefill_seconds: float
    decode_seconds: float
    judging_seconds: float
    total_seconds: float
    demonstration_tokens: int
    demonstration_seconds: float
    accepted_by_source: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        rounds: Sequence[Round],
        *,
        dropped_tokens: int,
        total_seconds: float,
        demonstrations: tuple[int, float],
    ) -> "Totals":
        """The sums over rounds; `demonstrations` are their tokens and seconds."""
        stats = [each.stats for each in rounds]
        return cls(
            calls=len(rounds),
            retrievals=sum(each.query is not None for each in rounds),
            tokens=sum(each.tokens for each in stats),
            dropped_tokens=dropped_tokens,
            prompt_tokens=sum(each.prompt_tokens for each in stats),
            reused_tokens=sum(sum(each.reused.values()) for each in rounds),
            approximate_tokens=sum(each.approximate_tokens for each in stats),
            steps=sum(each.steps for each in stats),
            retrieval_seconds=sum(each.retrieval_seconds for each in rounds),
            prefill_seconds=sum(each.prefill_seconds for each in stats),
            decode_seconds=sum(each.decode_seconds for each in stats),
            judging_seconds=sum(each.judging_seconds for each in rounds),
            total_seconds=total_seconds,
            demonstration_tokens=demonstrations[0],
            demonstration_seconds=demonstrations[1],
            accepted_by_source=dict(
                sum((each.accepted_by_source for each in stats), Counter[str]())
            ),
        )

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens with exact rows from the cache."""
        return self.reused_tokens

    @property
    def tokens_per_step(self) -> float:
        """Tokens per step without the first of each call (1.0 = plain decoding)."""
        return (self.tokens - self.calls) / self.steps if self.steps else 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is the kept output, `answer` the text after "the answer is".

    `finish_reason` is "answer", "stop" (the model ended), "length" or "stuck" (a round added
    nothing); `forced` if "the answer is" was appended at the end to get an answer.
    """

    question: str
    text: str
    answer: str
    token_ids: Sequence[int]
    finish_reason: str
    forced: bool
    rounds: Sequence[Round]
    made: Made
    totals: Totals

    def as_dict(self) -> dict[str, Any]:
        """The answer for --json."""
        return {
            "question": self.question,
            "text": self.text,
            "answer": self.answer,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "forced": self.forced,
            **asdict(self.made),
            "rounds": [each.as_dict() for each in self.rounds],
            "stats": {**asdict(self.totals), "tokens_per_step": self.totals.tokens_per_step},
        }
