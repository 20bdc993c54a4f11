"""One request on its way: everything the loop knows of it."""

from collections import deque
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from types import TracebackType

import torch
from torch import Tensor

from graft.decode.request import Constraint, PreparedRows, StopWhen
from graft.decode.stats import Stats
from graft.decode.text import Detokenizer
from graft.draft.copies.texts import NOWHERE, Layout, Origin, text_spans
from graft.draft.drafter import DraftContext, Drafter
from graft.errors import ContextLengthError, GraftError
from graft.models.arena import Extent
from graft.models.language_model import LanguageModel
from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree, root_only
from graft.tree.prune import cut, shallow
from graft.verify.verdict import Promise, Verdict
from graft.verify.walk import walk

Scores = tuple[float | None, float | None, tuple[tuple[int, float], ...]]
_NO_SCORES: Scores = (None, None, ())
_FIRST = root_only(0)  # what the first token is drawn at: the end of the prompt


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One emitted token. `text` may be empty while a character or stop string is unfinished.

    `source` says who guessed the token, "" is the model itself, and `origin` where it was copied
    from, if it was; `step` counts forwards, 0 is the one that ended the prompt; `choice` says which
    of n answers the token belongs to. `probability`, `entropy` and `top` (the likeliest tokens with
    log-probabilities) are of the model's own distribution, given when `logprobs` was asked for.
    """

    token: int
    text: str
    source: str
    step: int
    choice: int = 0
    probability: float | None = None
    entropy: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The whole answer. `finish_reason` is "stop", "length" or "cancelled".

    `promise` says what it has in common with plain decoding's answer. Where n answers were asked
    for, this is the first of them and `choices` holds all.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    seed: int
    stats: Stats
    choices: "tuple[Result, ...]" = ()
    promise: Promise = Promise.SAME_TEXT

    @property
    def lossless(self) -> bool:
        """Whether drafting left the distribution of answers as it was."""
        return self.promise.lossless

    @property
    def approximate(self) -> bool:
        """Whether keys and values were reused that the model would not have computed itself."""
        return self.stats.approximate


@dataclass(slots=True)
class _Landed:
    """What a step gave a sequence, until it is told; `tree` is None for the first token.

    `texts` and `scores` are there only where they had to be made at once.
    """

    tree: DraftTree | None
    path: list[int]
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)

    def sources(self) -> list[str]:
        """Who guessed the tokens."""
        guessed = [self.tree.source(node) for node in self.path[1 : len(self.tokens) + 1]]
        return guessed if len(guessed) == len(self.tokens) else [*guessed, ""]

    def place(self, number: int) -> int:
        """Where the token of this number was copied from."""
        node = number + 1
        return self.tree.place(self.path[node]) if node < len(self.path) else NOWHERE


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's state; `context.tokens` are the emitted tokens, the last one the root.

    It has rows (`extent`) from its admission to its end. `leader` is the first of the n answers to
    the same prompt: only that one reads it. What a step decides is taken in at once (`begin`,
    `take`), so that the next step can be sent; texts and events are made after that (`tell`).
    """

    context: DraftContext
    sampler: Sampler
    drafter: Drafter
    detokenizer: Detokenizer
    end_tokens: frozenset[int]
    room: int  # tokens that may still be emitted, by max_tokens and the model's context
    stats: Stats = field(default_factory=Stats)
    stop_when: StopWhen | None = None
    rows: PreparedRows | None = None
    constraint: Constraint | None = None
    draft_tokens: int | None = None  # most guesses in a step
    leader: "Sequence | None" = None
    most_cached: int | None = None  # first tokens that the caller lets it share; None: all
    heard: bool = True  # somebody may read its events
    patience: int | None = None  # unread events after which it pauses; None: never
    events: deque[TokenEvent] = field(default_factory=deque)  # not yet read by the caller
    untold: deque[_Landed] = field(default_factory=deque)  # taken in, no events yet
    extent: Extent | None = None
    drafted: bool = False  # its drafter knows of it
    layout: Layout | None = None  # of what its drafts are copied from; made when it is asked for
    promise: Promise = Promise.SAME_TEXT  # the worst of its verdicts'
    prompt_logits: Tensor | None = None  # [1, V] after the prompt, kept for the other choices
    finish_reason: str | None = None
    error: BaseException | None = None
    cancelled: bool = False

    @property
    def over(self) -> bool:
        """Whether it gets no more tokens."""
        return self.cancelled or self.finish_reason is not None or self.error is not None

    @property
    def done(self) -> bool:
        """Whether nothing more will come: over, and everything told."""
        return self.cancelled or (self.over and not self.untold)

    def cancel(self) -> None:
        """Nothing more is wanted of it; its rows are freed at the next sweep."""
        self.cancelled = True
        self.events.clear()

    def guard(self) -> "_Guard":
        """What goes wrong here, in a caller's callback say, is this sequence's error alone."""
        return _Guard(self)

    def start_drafter(self) -> None:
        """Once, as soon as its prompt is being read."""
        if not self.drafted:
            self.drafted = True
            self.drafter.start(self.context)

    @property
    def paused(self) -> bool:
        """Whether nobody has read its tokens for a while."""
        return self.patience is not None and len(self.events) >= self.patience

    @property
    def shareable(self) -> int | None:
        """How many of its first tokens may be shared with others; None: all."""
        limits = (self.most_cached, self.rows.shareable if self.rows else None)
        return min((each for each in limits if each is not None), default=None)

    def next_piece(self, most: int) -> list[int]:
        """The first prompt tokens that neither are in the cache nor will be put there."""
        read, end = self.extent.total, len(self.context.prompt)
        if self.rows:
            read, end = self.rows.unread(read)
        return self.context.prompt[read : min(end, read + most)]

    def put_rows(self, model: LanguageModel) -> None:
        """What is prepared of its prompt, up to the next piece that must be read."""
        if self.rows is None:
            return
        exact, approximate = self.rows.fill(model, self.extent)
        self.stats.cached_tokens += exact
        self.stats.approximate_tokens += approximate
        left = model.context_length - len(self.context.prompt) - self.extent.skipped
        if left <= 0:
            raise ContextLengthError(
                f"the positions of the reused passages end {1 - left} beyond the model's context; "
                "use another reuse than keep, or fewer passages"
            )
        self.room = min(self.room, left)

    def keep_rows(self, model: LanguageModel) -> None:
        """More of its prompt has been read: others may want that too."""
        if self.rows:
            self.rows.keep(model, self.extent)

    def allowed(self, tree: DraftTree) -> DraftTree:
        """What of a draft is worth scoring: no deeper than it may still emit, which also keeps it
        inside the model's context, no more than was asked for, nothing that is forbidden. But a
        token drawn from q stays, whatever it is (`verify/chain.py`)."""
        tree = shallow(tree, self.room - 1)
        if self.draft_tokens is not None:
            tree = cut(tree, self.draft_tokens)
        if self.constraint and len(tree) > 1 and tree.probs is None:
            with self.guard():
                tree = self.constraint.prune([*self.context.prompt, *self.context.tokens], tree)
        return tree

    def begin(self, logits: Tensor, drawn: Several[int] | None = None) -> int:
        """The prompt has been read, `logits` [1, V] follow it: the first token, unless it has been
        `drawn` already."""
        if self.sampler.params.n > 1 and self.leader is None:
            self.prompt_logits = logits.clone()  # the next step may overwrite them
        verdict = walk(_FIRST, logits, self.sampler, drawn)
        self._take(_Landed(None, verdict.path), [verdict.next_token], logits)
        return verdict.next_token

    def take(self, tree: DraftTree, verdict: Verdict, logits: Tensor) -> list[int]:
        """Take in what a step decided, token by token, until something ends the sequence."""
        self.promise = max(self.promise, verdict.promise)
        guessed = tree.tokens[verdict.path[1:]].tolist() if len(verdict.path) > 1 else []
        landed = _Landed(tree, verdict.path)
        self._take(landed, [*guessed, verdict.next_token], logits)
        return landed.tokens

    def _take(self, landed: _Landed, tokens: list[int], logits: Tensor) -> None:
        self.untold.append(landed)
        if self.sampler.params.logprobs is not None:
            landed.scores = _scores(tokens, logits[landed.path], self.sampler.params.logprobs)
        for node, token in zip(landed.path, tokens, strict=True):
            self.context.tokens.append(token)
            self.sampler.record([token])
            self.room -= 1
            if self._stops(token, logits, node, landed):
                self.finish_reason = "stop"
            elif self.room <= 0:
                self.finish_reason = "length"
            landed.tokens.append(token)
            if self.finish_reason:
                return

    def _stops(self, token: int, logits: Tensor, node: int, landed: _Landed) -> bool:
        """Whether a token is the last, which may depend on its text or its logits; both are looked
        at here only where that is so."""
        if self.sampler.params.stop:
            landed.texts.append(self.detokenizer.push(token))
        if token in self.end_tokens or self.detokenizer.stopped:
            return True
        if self.stop_when is None:
            return False
        return bool(self.stop_when(self.sampler.history, logits[node]))

    def tell(self) -> None:
        """Make the events of what was taken in, and count it."""
        try:
            for landed in self.untold:
                self._tell(landed)
        finally:
            self.untold.clear()

    def _tell(self, landed: _Landed) -> None:
        sources = landed.sources()
        if self.heard:
            self._tell_events(landed, sources)
        elif self.finish_reason:
            self._last_text()
        self.stats.tokens += len(sources)
        self.stats.unseen_tokens = self.context.unseen
        self.stats.inner_drafted_by_source = self.context.inner_drafted
        self.stats.inner_accepted_by_source = self.context.inner_accepted
        if landed.tree is not None:
            self.stats.count_step(landed.tree, sources[: len(landed.path) - 1])

    def _tell_events(self, landed: _Landed, sources: list[str]) -> None:
        step, choice = self.stats.steps + (landed.tree is not None), self.sampler.choice
        for i, (token, source) in enumerate(zip(landed.tokens, sources, strict=True)):
            text = landed.texts[i] if landed.texts else self.detokenizer.push(token)
            if self.finish_reason and i == len(sources) - 1:
                text += self._last_text()
            scores = landed.scores[i] if landed.scores else _NO_SCORES
            origin = self._origin(landed.place(i))
            self.events.append(TokenEvent(token, text, source, step, choice, *scores, origin))

    def _origin(self, place: int) -> Origin | None:
        if place <= NOWHERE:
            return None
        if self.layout is None:
            self.layout = Layout(text_spans(self.context))
        return self.layout.origin(place)

    def _last_text(self) -> str:
        """What comes after the text of the last token; it may hold a stop string."""
        text = self.detokenizer.finish(self.context.tokens)
        if self.detokenizer.stopped:
            self.finish_reason = "stop"
        return text

    def result(self) -> Result:
        """The answer so far."""
        return Result(
            self.detokenizer.text,
            list(self.context.tokens),
            self.finish_reason or "cancelled",
            self.sampler.seed,
            self.stats,
            promise=self.promise,
        )


@dataclass(slots=True)
class _Guard:
    """See `Sequence.guard`. Two a step for each sequence: a generator would take longer."""

    sequence: Sequence

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.sequence.error = error
            return True
        if error is not None:  # an interrupt belongs to the thread it came to
            self.sequence.error = GraftError("interrupted in the middle of a step")
        return False


def _scores(tokens: Several[int], logits: Tensor, wanted: int) -> list[Scores]:
    """Of all tokens of a step at once: one wait for the device. `logits` [n, V]."""
    log_probs = torch.log_softmax(logits.float(), -1)
    entropy = -(log_probs.exp() * log_probs.clamp(min=-1e9)).sum(-1)  # [n]
    chosen = log_probs.gather(1, torch.tensor(tokens, device=logits.device)[:, None]).exp()
    best = log_probs.topk(wanted)  # [n, wanted] twice
    told = torch.cat([chosen, entropy[:, None], best.values], 1).tolist()
    ids = best.indices.tolist()
    return [
        (probability, own_entropy, tuple(zip(likely, top, strict=True)))
        for (probability, own_entropy, *top), likely in zip(told, ids, strict=True)
    ]
