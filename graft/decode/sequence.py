"""One request on its way: everything the loop knows of it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graft.decode.stats import Stats
from graft.decode.text import Detokenizer
from graft.draft.drafter import DraftContext, Drafter
from graft.models.arena import Extent
from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree
from graft.verify.verdict import Verdict


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One emitted token. `text` may be empty while a character or stop string is unfinished.

    `source` says who guessed the token, "" is the model itself; `probability`, `entropy` and
    `top` (the likeliest tokens with log-probabilities) are of the model's own distribution,
    given when `logprobs` was asked for.
    """

    token: int
    text: str
    source: str
    step: int
    probability: float | None = None
    entropy: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The whole answer. `finish_reason` is "stop", "length" or "cancelled"."""

    text: str
    token_ids: list[int]
    finish_reason: str
    seed: int
    stats: Stats


@dataclass(slots=True)
class Sequence:
    """A request's state; `context.tokens` are the emitted tokens, the last one the root."""

    context: DraftContext
    extent: Extent
    sampler: Sampler
    drafter: Drafter
    detokenizer: Detokenizer
    end_tokens: frozenset[int]
    room: int  # tokens that may still be emitted, by max_tokens and the model's context
    stats: Stats = field(default_factory=Stats)
    finish_reason: str | None = None

    def emit(self, tree: DraftTree, verdict: Verdict, logits: Tensor) -> Iterator[TokenEvent]:
        """Take in what a step decided, token by token, until something ends the sequence."""
        tokens = [int(tree.tokens[node]) for node in verdict.path[1:]] + [verdict.next_token]
        sources = [tree.source(node) for node in verdict.path[1:]] + [""]
        accepted = 0
        for i, (token, source) in enumerate(zip(tokens, sources, strict=True)):
            accepted += i < len(tokens) - 1
            yield self._take(token, source, logits[verdict.path[i]])
            if self.finish_reason:
                break
        self.stats.per_step_drafted.append(len(tree) - 1)
        self.stats.per_step_accepted.append(accepted)
        self.stats.accepted_by_source.update(sources[:accepted])
        self.stats.accepted_by_position.update(range(1, accepted + 1))
        self.stats.drafted_by_source.update(Counter(tree.source(n) for n in range(1, len(tree))))

    def emit_first(self, token: int, logits: Tensor) -> TokenEvent:
        """Take in the token that the prefill yields."""
        return self._take(token, "", logits)

    def _take(self, token: int, source: str, logits: Tensor) -> TokenEvent:
        self.context.tokens.append(token)
        self.sampler.record([token])
        self.stats.tokens += 1
        self.room -= 1
        text = self.detokenizer.push(token)
        if token in self.end_tokens or self.detokenizer.stopped:
            self.finish_reason = "stop"
        elif self.room <= 0:
            self.finish_reason = "length"
        if self.finish_reason:
            text += self.detokenizer.finish(self.context.tokens)
            if self.detokenizer.stopped:
                self.finish_reason = "stop"
        return TokenEvent(token, text, source, self.stats.steps, *self._scores(token, logits))

    def _scores(
        self, token: int, logits: Tensor
    ) -> tuple[float | None, float | None, tuple[tuple[int, float], ...]]:
        wanted = self.sampler.params.logprobs
        if wanted is None:
            return None, None, ()
        log_probs = torch.log_softmax(logits.float(), -1)
        probs = log_probs.exp()
        entropy = -(probs * log_probs.clamp(min=-1e9)).sum()
        best = log_probs.topk(wanted) if wanted else None
        top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)) if best else ()
        return float(probs[token]), float(entropy), top

    def result(self) -> Result:
        """The answer so far."""
        return Result(
            self.detokenizer.text,
            list(self.context.tokens),
            self.finish_reason or "cancelled",
            self.sampler.seed,
            self.stats,
        )
