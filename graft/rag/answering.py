"""One question answered in rounds: retrieve, generate, let the policy decide.

The loop is DRAGIN's (Su et al. 2024), with two differences: a call ends where its further output
would be dropped, and a sentence with "the answer is" is completed before the loop ends. Each call
has its own seed, derived from the answer's: the same seed gives the same text with every drafter
and every exact reuse.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from graft.decode.engine import Engine
from graft.decode.stats import clock
from graft.decode.text import Detokenizer, EncodedPrompt
from graft.rag.answer import CUE, Answer, Made, Round, Totals, extract
from graft.rag.call import Call
from graft.rag.corpus import Hit
from graft.rag.document_cache import Prepared
from graft.rag.parts import PASSAGE, reused
from graft.rag.policy import Plan, Token, Tokens, Written, never, text_of
from graft.rag.prompt import quotable
from graft.sampling import SamplingParams, choose_seed
from graft.verify.verdict import Promise

if TYPE_CHECKING:
    from graft.rag.session import Session

QUERY_TOKENS = 64  # the last ones of a query are used
FORCED_TOKENS = 20  # of a forced answer
_SEED_STEP = 0x9E3779B97F4A7C15  # odd: all calls of an answer have different seeds


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Passages were retrieved for the round that begins."""

    number: int
    query: str
    reason: str
    hits: Sequence[Hit]


@dataclass(frozen=True, slots=True)
class TextAdded:
    """Text that is kept."""

    text: str


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A round is complete."""

    round: Round


Event = Retrieved | TextAdded | RoundEnded


@dataclass(frozen=True, slots=True)
class _Decision:
    """The query and reason of a round, and the seconds of retrieval and policy."""

    query: str | None = None
    reason: str = ""
    retrieval_seconds: float = 0.0
    policy_seconds: float = 0.0


class AnswerStream:
    """Iterate for the events of an answer; `answer` is complete afterwards.

    Ending the iteration early cancels the running call.
    """

    def __init__(self, session: "Session", question: str, params: SamplingParams) -> None:
        self._session, self._question, self._params = session, question, params
        self._name = uuid4().hex  # unique: equal questions may run at once
        self._seed = choose_seed() if params.seed is None else params.seed
        self._kept: list[Token] = []
        self._seen: list[str] = []  # ids of passages, in the order of the rounds
        self._hits: Sequence[Hit] = ()  # of the last search
        self._ended: list[Round] = []
        self._dropped_tokens = 0
        self._finish_reason, self._forced = "", False
        self.promise = Promise.SAME_TEXT  # of the rounds so far
        self._running: Call | None = None
        self._cancelled = False
        self._question_tokens = _tokens(session.engine, f"{question}\n")
        self._seconds = self._head_seconds = 0.0
        self._events = self._run()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def close(self) -> None:
        """Cancel the answer, in the thread that iterates."""
        self._events.close()

    def cancel(self) -> None:
        """End the iteration with CancelledCallError, from any thread."""
        self._cancelled = True
        if self._running:
            self._running.cancel()

    @property
    def prefill_progress(self) -> tuple[int, int]:
        """Of the running call; see `Stream`."""
        stream = self._running.stream if self._running else None
        return stream.prefill_progress if stream else (0, 0)

    @property
    def answer(self) -> Answer:
        """The answer so far, in whole rounds."""
        session = self._session
        return Answer(
            question=self._question,
            text=self._text.strip(),
            answer=extract(self._text),
            token_ids=[token.id for token in self._kept],
            finish_reason=self._finish_reason or "cancelled",
            forced=self._forced,
            rounds=tuple(self._ended),
            made=Made(
                policy=session.policy.name,
                reuse=session.cache.reuse.name,
                draft=session.draft,
                approximate=session.cache.reuse.approximate,
                lossless=self.promise.lossless,
                guided=session.guided,
                language=session.language.name,
                seed=self._seed,
            ),
            totals=Totals.of(
                self._ended,
                dropped_tokens=self._dropped_tokens,
                total_seconds=self._seconds,
                demonstrations=(len(session.prompter.head.tokens), self._head_seconds),
            ),
        )

    @property
    def _text(self) -> str:
        return text_of(self._kept)

    def _run(self) -> Generator[Event]:
        """All events; `_seconds` excludes the time that the caller takes between them."""
        self._head_seconds = self._session.prefill_demonstrations()
        events = self._rounds()
        try:
            while True:
                began = clock()
                try:
                    event = next(events)
                except StopIteration:
                    return
                finally:
                    self._seconds += clock() - began
                yield event
        finally:
            events.close()
            self._session.cache.end(self._name)

    def _rounds(self) -> Generator[Event]:
        plan: Plan | None = self._session.policy.first(self._question)
        while plan is not None:
            plan = yield from self._round(plan)
        if self._session.force_answer and not CUE.search(self._text):
            yield from self._force()

    def _round(self, plan: Plan) -> Generator[Event, None, Plan | None]:
        """Retrieve, generate, decide; returns the plan of the next round or None."""
        session = self._session
        retrievals = sum(each.query is not None for each in self._ended)
        last = plan.query is not None and retrievals >= session.max_rounds
        if last:  # generate to the end with the passages of the last search
            plan = Plan(0, None, certain=True, reason="maximum number of rounds")
        grounded = last or plan.query is not None
        query: str | None = None
        seconds = 0.0
        if plan.query is not None:
            query, seconds = self._retrieve(plan.query)
            yield Retrieved(len(self._ended) + 1, query, plan.reason, self._hits)
        prompt = self._prompt(grounded=grounded)
        call = self._call(prompt, plan.is_complete, scored=session.policy.scored and not grounded)
        for piece in call.pieces():
            if plan.certain and piece:
                yield TextAdded(piece)
        began = clock()
        following = session.policy.next(
            Written(self._question_tokens, tuple(self._kept), tuple(call.tokens), grounded)
        )
        decision = _Decision(query, plan.reason, seconds, clock() - began)
        keep = len(call.tokens) if plan.certain else following.keep
        if not plan.certain and keep:
            yield TextAdded(text_of(call.tokens[:keep]))
        yield RoundEnded(self._end_round(call, prompt, keep, decision))
        stuck = last or (keep == 0 and (grounded or following.query is None))
        self._finish_reason = self._reason_to_end(call, keep, stuck=stuck)
        return None if self._finish_reason else following

    def _retrieve(self, query: str) -> tuple[str, float]:
        """Search with the last tokens of a query, or the question if it is empty; returns the
        query and the seconds."""
        encoder, tokenizer = self._session.engine.encoder, self._session.engine.loaded.tokenizer
        query = query or self._question
        tokens = encoder.text(query)
        if len(tokens) > QUERY_TOKENS:
            query = tokenizer.decode(tokens[-QUERY_TOKENS:], skip_special_tokens=True).strip()
        began = clock()
        self._hits = self._session.corpus.search(query, self._session.passages)
        return query, clock() - began

    def _prompt(self, *, grounded: bool, cue: Tokens = ()) -> Prepared:
        """The next prompt, with the passages of the last search or without; `cue` follows the text
        so far."""
        session = self._session
        text = [token.id for token in (*self._kept, *cue)]
        hits = self._hits if grounded else ()
        parts = session.prompter.parts(self._question, hits, self._seen, text)
        return session.cache.prepare(parts, self._name)

    def _call(
        self,
        prompt: Prepared,
        is_complete: Callable[[Tokens], bool] = never,
        *,
        scored: bool = False,
        max_tokens: int | None = None,
    ) -> Call:
        """A call that continues the text, by default up to the maximum length of the answer."""
        session = self._session
        params = replace(
            self._params,
            seed=(self._seed + len(self._ended) * _SEED_STEP) % (1 << 64),
            max_tokens=max_tokens or self._params.max_tokens - len(self._kept),
            stop=(*self._params.stop, session.prompter.stop),
            logprobs=0 if scored else None,
        )
        encoded = EncodedPrompt(prompt.tokens, quotable(prompt.parts))
        request = session.request(encoded, params, prompt.rows)
        call = Call(session.engine, request, self._text, is_complete, session.language)
        self._running = call
        if self._cancelled:
            call.cancel()
        return call

    def _end_round(self, call: Call, prompt: Prepared, keep: int, decision: _Decision) -> Round:
        """Keep the first `keep` tokens of a call and record the round."""
        ids = [part.id for part in prompt.parts if part.kind == PASSAGE]
        ended = Round(
            number=len(self._ended) + 1,
            query=decision.query,
            reason=decision.reason,
            hits=tuple(hit for hit in self._hits if hit.passage.id in ids),
            reordered=prompt.reordered,
            text=text_of(call.tokens[:keep]),
            dropped=text_of(call.tokens[keep:]),
            reused=reused(prompt.parts, call.result.stats.cached_tokens),
            retrieval_seconds=decision.retrieval_seconds,
            judging_seconds=decision.policy_seconds,
            stats=call.result.stats,
        )
        self.promise = max(self.promise, call.result.promise)
        self._kept += call.tokens[:keep]
        self._seen += ids
        self._ended.append(ended)
        self._dropped_tokens += call.result.stats.tokens - keep
        return ended

    def _reason_to_end(self, call: Call, keep: int, *, stuck: bool) -> str:
        """The reason why the answer ends here; "" if it continues."""
        if CUE.search(self._text):
            return "answer"
        if len(self._kept) >= self._params.max_tokens:
            return "length"
        if not call.cut and keep == len(call.tokens):
            return call.result.finish_reason
        return "stuck" if stuck else ""

    def _force(self) -> Iterator[Event]:
        """Append "the answer is" and generate without documents, as DRAGIN's evaluation does."""
        session = self._session
        cue = _tokens(session.engine, session.prompter.cue(begun=bool(self._kept)))
        prompt = self._prompt(grounded=False, cue=cue)
        if len(prompt.tokens) + FORCED_TOKENS >= session.engine.context_length:
            return
        self._kept += cue
        self._forced = True
        yield TextAdded(text_of(cue))
        call = self._call(prompt, max_tokens=FORCED_TOKENS)
        for piece in call.pieces():
            if piece:
                yield TextAdded(piece)
        decision = _Decision(reason="forced: no answer yet")
        yield RoundEnded(self._end_round(call, prompt, len(call.tokens), decision))


def _tokens(engine: Engine, text: str | Sequence[int]) -> list[Token]:
    """The tokens of a text with their characters."""
    detokenizer = Detokenizer(engine.loaded.tokenizer, ())
    return [Token(each, detokenizer.push(each)) for each in engine.encoder.text(text)]
