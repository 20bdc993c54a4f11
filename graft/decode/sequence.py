"""One request on its way: everything the loop knows of it."""

import contextlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graft.decode.request import StopWhen
from graft.decode.stats import Stats
from graft.decode.text import Detokenizer
from graft.draft.drafter import DraftContext, Drafter
from graft.errors import GraftError
from graft.models.arena import Extent
from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree
from graft.verify.verdict import Verdict


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One emitted token. `text` may be empty while a character or stop string is unfinished.

    `source` says who guessed the token, "" is the model itself; `choice` which of n answers it
    belongs to; `probability`, `entropy` and `top` (the likeliest tokens with log-probabilities)
    are of the model's own distribution, given when `logprobs` was asked for.
    """

    token: int
    text: str
    source: str
    step: int
    choice: int = 0
    probability: float | None = None
    entropy: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The whole answer. `finish_reason` is "stop", "length" or "cancelled".

    Where n answers were asked for, this is the first of them and `choices` holds all.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    seed: int
    stats: Stats
    choices: "tuple[Result, ...]" = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's state; `context.tokens` are the emitted tokens, the last one the root.

    It has rows (`extent`) from its admission to its end. `leader` is the first of the n answers to
    the same prompt: only that one reads it.
    """

    context: DraftContext
    sampler: Sampler
    drafter: Drafter
    detokenizer: Detokenizer
    end_tokens: frozenset[int]
    room: int  # tokens that may still be emitted, by max_tokens and the model's context
    stats: Stats = field(default_factory=Stats)
    stop_when: StopWhen | None = None
    leader: "Sequence | None" = None
    patience: int | None = None  # unread events after which it pauses; None: never
    events: deque[TokenEvent] = field(default_factory=deque)  # not yet read by the caller
    extent: Extent | None = None
    prompt_logits: Tensor | None = None  # [V] after the prompt, kept for the other choices
    finish_reason: str | None = None
    error: BaseException | None = None
    cancelled: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.cancelled or self.finish_reason is not None or self.error is not None

    def cancel(self) -> None:
        """Nothing more is wanted of it; its rows are freed at the next sweep."""
        self.cancelled = True
        self.events.clear()

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """What goes wrong here, in a caller's callback say, is this sequence's error alone."""
        try:
            yield
        except Exception as error:
            self.error = error
        except BaseException:  # an interrupt belongs to the thread it came to
            self.error = GraftError("interrupted in the middle of a step")
            raise

    def begin(self, logits: Tensor) -> None:
        """The prompt has been read, `logits` [V] follow it: draw the first token."""
        self.prompt_logits = logits
        self._take(self.sampler.draw(logits, []), "", logits)
        self.drafter.start(self.context)

    @property
    def paused(self) -> bool:
        """Whether nobody has read its tokens for a while."""
        return self.patience is not None and len(self.events) >= self.patience

    def next_piece(self, most: int) -> list[int]:
        """The first prompt tokens that are not in the cache yet."""
        read = self.extent.total
        return self.context.prompt[read : read + most]

    def emit(self, tree: DraftTree, verdict: Verdict, logits: Tensor) -> list[int]:
        """Take in what a step decided, token by token, until something ends the sequence."""
        tokens = [int(tree.tokens[node]) for node in verdict.path[1:]] + [verdict.next_token]
        sources = [tree.source(node) for node in verdict.path[1:]] + [""]
        accepted = 0
        for i, (token, source) in enumerate(zip(tokens, sources, strict=True)):
            accepted += i < len(tokens) - 1
            self._take(token, source, logits[verdict.path[i]])
            if self.finish_reason:
                break
        self.stats.per_step_drafted.append(len(tree) - 1)
        self.stats.per_step_accepted.append(accepted)
        self.stats.accepted_by_source.update(sources[:accepted])
        self.stats.accepted_by_position.update(range(1, accepted + 1))
        self.stats.drafted_by_source.update(Counter(tree.source(n) for n in range(1, len(tree))))
        return tokens[: i + 1]

    def _take(self, token: int, source: str, logits: Tensor) -> None:
        self.context.tokens.append(token)
        self.sampler.record([token])
        self.stats.tokens += 1
        self.room -= 1
        text = self.detokenizer.push(token)
        if token in self.end_tokens or self.detokenizer.stopped:
            self.finish_reason = "stop"
        elif self.stop_when and self.stop_when(
            [*self.context.prompt, *self.context.tokens], logits
        ):
            self.finish_reason = "stop"
        elif self.room <= 0:
            self.finish_reason = "length"
        if self.finish_reason:
            text += self.detokenizer.finish(self.context.tokens)
            if self.detokenizer.stopped:
                self.finish_reason = "stop"
        scores = self._scores(token, logits)
        choice = self.sampler.choice
        self.events.append(TokenEvent(token, text, source, self.stats.steps, choice, *scores))

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
