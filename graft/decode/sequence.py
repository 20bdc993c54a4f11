"""The state of one answer while it is generated."""

from collections import deque
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from types import TracebackType

from torch import Tensor

from graft.decode.output import NO_SCORES, Result, StepOutput, TokenEvent, token_scores
from graft.decode.prepared_request import Constraint, PreparedRows
from graft.decode.request import StopWhen
from graft.decode.stats import Stats
from graft.decode.text import Detokenizer
from graft.draft.copies.texts import NOWHERE, Layout, Origin, text_spans
from graft.draft.drafter import DraftContext, Drafter
from graft.errors import ContextLengthError, GraftError
from graft.models.arena import Extent
from graft.models.language_model import LanguageModel
from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree, root_only
from graft.tree.prune import cut, shallow, without
from graft.verify.verdict import Promise, Verdict, Verifier
from graft.verify.walk import walk

_AFTER_PROMPT = root_only(0)  # the first token is sampled after the prompt's last token


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer; `context.tokens` are the generated tokens, the last one is the next tree's root.

    It holds KV cache rows (`extent`) from admission until it is collected. `leader` is the first of
    n answers to one prompt; only the leader prefills it. `append_first` and `append` take in a
    step's tokens at once, so that the next step can be launched; `emit` builds texts and events
    after that.
    """

    context: DraftContext
    sampler: Sampler
    drafter: Drafter
    detokenizer: Detokenizer
    end_tokens: frozenset[int]
    tokens_left: int  # that may still be generated, by max_tokens and the model's context
    stats: Stats = field(default_factory=Stats)
    stop_when: StopWhen | None = None
    rows: PreparedRows | None = None
    constraint: Constraint | None = None
    verify: Verifier | None = None  # None: the engine's
    leader: "Sequence | None" = None
    max_cached: int | None = None  # first tokens to share through the prefix cache; None: all
    streaming: bool = True  # False: no events, only a result
    max_unread: int | None = None  # unread events after which it pauses; None: never
    events: deque[TokenEvent] = field(default_factory=deque)  # not yet read by the caller
    pending_outputs: deque[StepOutput] = field(default_factory=deque)  # not yet emitted
    extent: Extent | None = None
    drafter_started: bool = False
    layout: Layout | None = None  # of the texts that drafts are copied from; made on first use
    promise: Promise = Promise.SAME_TEXT  # the weakest of its verdicts
    prompt_logits: Tensor | None = None  # [1, V] after the prompt, for the other choices
    finish_reason: str | None = None
    error: BaseException | None = None
    cancelled: bool = False

    @property
    def held_extent(self) -> Extent:
        """Its KV cache rows, while it holds some."""
        assert self.extent is not None
        return self.extent

    @property
    def finished(self) -> bool:
        """Whether it gets no more tokens."""
        return self.cancelled or self.finish_reason is not None or self.error is not None

    @property
    def done(self) -> bool:
        """Whether it is finished and all its outputs are emitted."""
        return self.cancelled or (self.finished and not self.pending_outputs)

    @property
    def paused(self) -> bool:
        """Whether the caller has too many unread events."""
        return self.max_unread is not None and len(self.events) >= self.max_unread

    @property
    def shareable(self) -> int | None:
        """How many of its first tokens may be shared with other requests; None: all."""
        limits = (self.max_cached, self.rows.shareable if self.rows else None)
        return min((each for each in limits if each is not None), default=None)

    def cancel(self) -> None:
        """End it here; its rows are freed when finished sequences are collected."""
        self.cancelled = True
        self.events.clear()

    def guard(self) -> "_Guard":
        """A context in which an exception, for example in a caller's callback, becomes this
        sequence's error and leaves the others running."""
        return _Guard(self)

    def start_drafter(self) -> None:
        """Start its drafter on the first call, which comes while the prompt is prefilled."""
        if not self.drafter_started:
            self.drafter_started = True
            self.drafter.start(self.context)

    def next_chunk(self, max_tokens: int) -> list[int]:
        """The next prompt tokens to prefill: neither cached nor prepared."""
        start, end = self.held_extent.total, len(self.context.prompt)
        if self.rows:
            start, end = self.rows.unread(start)
        return self.context.prompt[start : min(end, start + max_tokens)]

    def insert_rows(self, model: LanguageModel) -> None:
        """Insert prepared rows up to the next chunk."""
        if self.rows is None:
            return
        extent = self.held_extent
        exact, approximate = self.rows.fill(model, extent)
        self.stats.cached_tokens += exact
        self.stats.approximate_tokens += approximate
        left = model.context_length - len(self.context.prompt) - extent.skipped
        if left <= 0:
            raise ContextLengthError(
                f"the positions of the reused passages end {1 - left} beyond the model's context; "
                "use another reuse than keep, or fewer passages"
            )
        self.tokens_left = min(self.tokens_left, left)

    def store_rows(self, model: LanguageModel) -> None:
        """Store newly computed prompt rows for later requests, if rows are prepared for it."""
        if self.rows:
            self.rows.keep(model, self.held_extent)

    def limit(self, tree: DraftTree) -> DraftTree:
        """The part of a draft tree to score: no deeper than the tokens left (and so within the
        model's context), no larger than the request's maximum, nothing that the constraint
        forbids. A chain sampled from q keeps forbidden tokens: `verify/chain.py` needs them."""
        tree = shallow(tree, self.tokens_left - 1)
        tree = cut(tree, self.context.max_tokens(len(tree)))
        if self.constraint and len(tree) > 1 and tree.probs is None:
            with self.guard():
                tree = without(tree, self.end_tokens)  # no constraint allows a token after these
                tree = self.constraint.prune([*self.context.prompt, *self.context.tokens], tree)
        return tree

    @property
    def runs_ahead(self) -> bool:
        """Whether a step may start before the last token is known: the device alone samples, no one
        needs its logits, and the next token is not the last."""
        params = self.sampler.params
        samples = self.sampler.stateless and (params.greedy or params.top_p == 1)
        unused = self.stop_when is None and params.logprobs is None
        return samples and unused and self.tokens_left > 1

    def append_first(self, logits: Tensor, drawn: Several[int] | None = None) -> int:
        """Append the first token, `drawn` or sampled from `logits` [1, V] after the prompt."""
        if self.sampler.params.n > 1 and self.leader is None:
            self.prompt_logits = logits.clone()  # the next step may overwrite them
        verdict = walk(_AFTER_PROMPT, logits, self.sampler, drawn)
        self._append(StepOutput(None, verdict.path), [verdict.next_token], logits)
        return verdict.next_token

    def append(self, tree: DraftTree, verdict: Verdict, logits: Tensor) -> list[int]:
        """Append the accepted tokens and the next one, up to a token that ends the sequence."""
        self.promise = max(self.promise, verdict.promise)
        accepted = tree.tokens[verdict.path[1:]].tolist() if len(verdict.path) > 1 else []
        output = StepOutput(tree, verdict.path)
        self._append(output, [*accepted, verdict.next_token], logits)
        return output.tokens

    def _append(self, output: StepOutput, tokens: list[int], logits: Tensor) -> None:
        self.pending_outputs.append(output)
        if self.sampler.params.logprobs is not None:
            output.scores = token_scores(tokens, logits[output.path], self.sampler.params.logprobs)
        for node, token in zip(output.path, tokens, strict=True):
            self.context.tokens.append(token)
            self.sampler.record([token])
            self.tokens_left -= 1
            if self._stops(token, logits, node, output):
                self.finish_reason = "stop"
            elif self.tokens_left <= 0:
                self.finish_reason = "length"
            output.tokens.append(token)
            if self.finish_reason:
                return

    def _stops(self, token: int, logits: Tensor, node: int, output: StepOutput) -> bool:
        """Whether a token is the last; its text and logits are used only where they decide that."""
        if self.sampler.params.stop:
            output.texts.append(self.detokenizer.push(token))
        if token in self.end_tokens or self.detokenizer.stopped:
            return True
        if self.stop_when is None:
            return False
        assert self.sampler.history is not None
        return bool(self.stop_when(self.sampler.history, logits[node]))

    def emit(self) -> None:
        """Turn pending outputs into events and statistics."""
        try:
            for output in self.pending_outputs:
                self._emit(output)
        finally:
            self.pending_outputs.clear()

    def _emit(self, output: StepOutput) -> None:
        sources = output.sources()
        if self.streaming:
            self._emit_events(output, sources)
        elif self.finish_reason:
            self._last_text()
        self.stats.tokens += len(sources)
        self.stats.unseen_tokens = self.context.unseen
        self.stats.inner_drafted_by_source = self.context.inner_drafted
        self.stats.inner_accepted_by_source = self.context.inner_accepted
        if output.tree is not None:
            self.stats.count_step(output.tree, sources[: len(output.path) - 1])

    def _emit_events(self, output: StepOutput, sources: list[str]) -> None:
        step, choice = self.stats.steps + (output.tree is not None), self.sampler.choice
        for i, (token, source) in enumerate(zip(output.tokens, sources, strict=True)):
            text = output.texts[i] if output.texts else self.detokenizer.push(token)
            if self.finish_reason and i == len(sources) - 1:
                text += self._last_text()
            scores = output.scores[i] if output.scores else NO_SCORES
            origin = self._origin(output.place(i))
            self.events.append(TokenEvent(token, text, source, step, choice, *scores, origin))

    def _origin(self, place: int) -> Origin | None:
        if place <= NOWHERE:
            return None
        if self.layout is None:
            self.layout = Layout(text_spans(self.context))
        return self.layout.origin(place)

    def _last_text(self) -> str:
        """The text held back until the end; it may complete a stop string."""
        text = self.detokenizer.finish(self.context.tokens)
        if self.detokenizer.stopped:
            self.finish_reason = "stop"
        return text

    @property
    def answer(self) -> list[int]:
        """The generated tokens without the one that ended them: nothing follows it."""
        tokens = self.context.tokens
        return tokens[:-1] if tokens and tokens[-1] in self.end_tokens else tokens

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
    """See `Sequence.guard`. A class, as a generator costs more: each sequence enters two a step."""

    sequence: Sequence

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.sequence.error = error
            return True
        if error is not None:  # an interrupt is raised again in the thread it came to
            self.sequence.error = GraftError("interrupted in the middle of a step")
        return False
