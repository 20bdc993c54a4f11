"""What a session gives back: the answer, the rounds it took, what they cost."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from graft.decode.stats import Stats
from graft.rag.corpus import Hit

CUE = re.compile(r"the answer is", re.IGNORECASE)


def extract(text: str) -> str:
    """What stands behind the first "the answer is", without a colon or the last full stop; "" where
    it is missing."""
    found = CUE.search(text)
    if not found:
        return ""
    return text[found.end() :].strip().removeprefix(":").strip().removesuffix(".").strip()


@dataclass(frozen=True, slots=True)
class Round:
    """One call of the model. `query` is None where it wrote without documents.

    `hits` are as the search ranked them; `reordered` says that the prompt has them otherwise.
    `text` is what stays of what was written, `dropped` what does not. `reused` counts the prompt's
    tokens that were known exactly and not read again, by part; those of passages that were known
    only nearly are in `stats.approximate_tokens`. `judging_seconds` went into deciding what comes
    next.
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
        """For --json."""
        return {
            "round": self.number,
            "query": self.query,
            "reason": self.reason,
            "passages": [{"id": hit.passage.id, "score": hit.score} for hit in self.hits],
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
    """How an answer was made, so that another can be compared with it.

    `approximate`: reuse may have changed it; not `lossless`: drafting may have.
    """

    policy: str
    reuse: str
    draft: str
    approximate: bool
    lossless: bool
    guided: bool
    language: str  # who found the sentences
    seed: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the rounds; `reused_tokens` were known exactly, `approximate_tokens` nearly.
    Seconds of the demonstrations are apart, and not in `total_seconds`."""

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

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens with exact rows from the cache."""
        return self.reused_tokens

    @property
    def tokens_per_step(self) -> float:
        """Tokens a step yields, the first of each call aside (1.0 = plain decoding)."""
        return (self.tokens - self.calls) / self.steps if self.steps else 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is all that was written and kept, `answer` what stands behind "the answer is".

    `finish_reason` is "answer" (given), "stop" (the model ended), "length" or "stuck" (a round
    added nothing); `forced` says that the answer had to be asked for in the end.
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
        """What `--json` prints."""
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


@dataclass(slots=True)
class Tally:
    """Adds up rounds."""

    rounds: list[Round] = field(default_factory=list)
    dropped: int = 0  # tokens

    @property
    def retrievals(self) -> int:
        """Rounds that had something looked up."""
        return sum(each.query is not None for each in self.rounds)

    def totals(self, seconds: float, *, head_tokens: int, head_seconds: float) -> Totals:
        """Of all rounds; `seconds` is what the caller's clock says."""
        stats = [each.stats for each in self.rounds]
        return Totals(
            calls=len(self.rounds),
            retrievals=self.retrievals,
            tokens=sum(each.tokens for each in stats),
            dropped_tokens=self.dropped,
            prompt_tokens=sum(each.prompt_tokens for each in stats),
            reused_tokens=sum(sum(each.reused.values()) for each in self.rounds),
            approximate_tokens=sum(each.approximate_tokens for each in stats),
            steps=sum(each.steps for each in stats),
            retrieval_seconds=sum(each.retrieval_seconds for each in self.rounds),
            prefill_seconds=sum(each.prefill_seconds for each in stats),
            decode_seconds=sum(each.decode_seconds for each in stats),
            judging_seconds=sum(each.judging_seconds for each in self.rounds),
            total_seconds=seconds,
            demonstration_tokens=head_tokens,
            demonstration_seconds=head_seconds,
            accepted_by_source=dict(
                sum((each.accepted_by_source for each in stats), Counter[str]())
            ),
        )
