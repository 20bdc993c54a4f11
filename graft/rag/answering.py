"""One question answered in rounds: retrieve, generate, let the policy decide.

The loop is DRAGIN's (Su et al. 2024), with two differences: a call ends where its further output
would be dropped, and a sentence with "the answer is" is completed before the loop ends. Each call
has its own seed, derived from the answer's: the same seed gives the same text with every drafter
and every exact reuse.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from graft.decode.engine import Engine
from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.decode.stats import clock
from graft.decode.text import Detokenizer, EncodedPrompt
from graft.rag.answer import CUE, Answer, Made, Round, Totals, extract
from graft.rag.call import Call
from graft.rag.corpus import Hit
from graft.rag.parts import PASSAGE, Part
from graft.rag.policy import Plan, Token, Tokens, Written, never, text_of
from graft.rag.prompt import quotable
from graft.rag.round_reuse import Handed, reused
from graft.sampling import SamplingParams, choose_seed

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


@dataclass(slots=True)
class _State:
    """An answer in progress."""

    kept: list[Token] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)  # ids of passages, in the order of the rounds
    hits: Sequence[Hit] = ()  # of the last search
    rounds: list[Round] = field(default_factory=list)
    dropped_tokens: int = 0
    finish_reason: str = ""
    forced: bool = False
    lossless: bool = True  # so far

    @property
    def text(self) -> str:
        return text_of(self.kept)


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
        self._state = _State()
        self._question_tokens = _tokens(session.engine, f"{question}\n")
        self._seconds = self._head_seconds = 0.0
        self._events = self._run()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def close(self) -> None:
        """Cancel the answer; may be called at any time."""
        self._events.close()

    @property
    def answer(self) -> Answer:
        """The answer so far, in whole rounds."""
        session, state = self._session, self._state
        return Answer(
            question=self._question,
            text=state.text.strip(),
            answer=extract(state.text),
            token_ids=[token.id for token in state.kept],
            finish_reason=state.finish_reason or "cancelled",
            forced=state.forced,
            rounds=tuple(state.rounds),
            made=Made(
                policy=session.policy.name,
                reuse=session.reuse.name,
                draft=session.draft,
                approximate=session.reuse.approximate,
                lossless=state.lossless,
                guided=session.guided,
                language=session.language.name,
                seed=self._seed,
            ),
            totals=Totals.of(
                state.rounds,
                dropped_tokens=state.dropped_tokens,
                total_seconds=self._seconds,
                demonstrations=(len(session.prompter.head.tokens), self._head_seconds),
            ),
        )

    def _run(self) -> Iterator[Event]:
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
            self._session.reuse.end(self._name)

    def _rounds(self) -> Iterator[Event]:
        plan: Plan | None = self._session.policy.first(self._question)
        while plan is not None:
            plan = yield from self._round(plan)
        if self._session.force_answer and not CUE.search(self._state.text):
            yield from self._force()

    def _round(self, plan: Plan) -> Iterator[Event]:
        """Retrieve, generate, decide; returns the plan of the next round or None."""
        state, session = self._state, self._session
        retrievals = sum(each.query is not None for each in state.rounds)
        last = plan.query is not None and retrievals >= session.max_rounds
        if last:  # generate to the end with the passages of the last search
            plan = Plan(0, None, certain=True, reason="maximum number of rounds")
        grounded = last or plan.query is not None
        decision = _Decision(reason=plan.reason)
        if plan.query is not None:
            decision = self._retrieve(plan)
            yield Retrieved(len(state.rounds) + 1, decision.query, plan.reason, state.hits)
        call, handed = self._call(plan.is_complete, grounded=grounded)
        for piece in call.pieces():
            if plan.certain and piece:
                yield TextAdded(piece)
        began = clock()
        following = session.policy.next(
            Written(self._question_tokens, tuple(state.kept), tuple(call.tokens), grounded)
        )
        decision = replace(decision, policy_seconds=clock() - began)
        keep = len(call.tokens) if plan.certain else following.keep
        if not plan.certain and keep:
            yield TextAdded(text_of(call.tokens[:keep]))
        yield RoundEnded(self._end_round(call, handed, keep, decision))
        stuck = last or (keep == 0 and (grounded or following.query is None))
        state.finish_reason = self._finish_reason(call, keep, stuck=stuck)
        return None if state.finish_reason else following

    def _retrieve(self, plan: Plan) -> _Decision:
        """Search with the last tokens of the plan's query, or the question if it is empty."""
        encoder, tokenizer = self._session.engine.encoder, self._session.engine.loaded.tokenizer
        query = plan.query or self._question
        tokens = encoder.text(query)
        if len(tokens) > QUERY_TOKENS:
            query = tokenizer.decode(tokens[-QUERY_TOKENS:], skip_special_tokens=True).strip()
        began = clock()
        self._state.hits = self._session.corpus.search(query, self._session.passages)
        return _Decision(query, plan.reason, retrieval_seconds=clock() - began)

    def _call(
        self, is_complete: Callable[[Tokens], bool], *, grounded: bool
    ) -> tuple[Call, Handed]:
        """Continue the text, with the passages of the last search or without."""
        state, session = self._state, self._session
        text = [token.id for token in state.kept]
        handed = self._hand(state.hits if grounded else (), text)
        scored = session.policy.scored and not grounded
        tokens_left = self._params.max_tokens - len(text)
        params = self._call_params(max_tokens=tokens_left, logprobs=0 if scored else None)
        return self._make_call(handed, params, state.text, is_complete), handed

    def _hand(self, hits: Sequence[Hit], text: list[int]) -> Handed:
        """The prompt with these passages and its cached rows."""
        session = self._session
        parts: list[Part] = session.prompter.parts(self._question, hits, self._state.seen, text)
        return session.reuse.hand(parts, self._name)

    def _call_params(self, *, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """The sampling parameters of the next call."""
        return replace(
            self._params,
            seed=(self._seed + len(self._state.rounds) * _SEED_STEP) % (1 << 64),
            max_tokens=max_tokens,
            stop=(*self._params.stop, self._session.prompter.stop),
            logprobs=logprobs,
        )

    def _make_call(
        self,
        handed: Handed,
        params: SamplingParams,
        before: str,
        enough: Callable[[Tokens], bool] = never,
    ) -> Call:
        session = self._session
        prompt = EncodedPrompt(handed.tokens, quotable(handed.parts))
        request = Request(prompt, params, draft=session.draft)
        prepared = PreparedRequest(request, **handed.options)
        return Call(session.engine, prepared, before, enough, session.language)

    def _end_round(self, call: Call, handed: Handed, keep: int, decision: _Decision) -> Round:
        """Keep the first `keep` tokens of a call and record the round."""
        state = self._state
        ids = [part.id for part in handed.parts if part.kind == PASSAGE]
        ended = Round(
            number=len(state.rounds) + 1,
            query=decision.query,
            reason=decision.reason,
            hits=tuple(hit for hit in state.hits if hit.passage.id in ids),
            reordered=handed.reordered,
            text=text_of(call.tokens[:keep]),
            dropped=text_of(call.tokens[keep:]),
            reused=reused(handed, call.result.stats.cached_tokens),
            retrieval_seconds=decision.retrieval_seconds,
            judging_seconds=decision.policy_seconds,
            stats=call.result.stats,
        )
        state.lossless &= call.result.lossless
        state.kept += call.tokens[:keep]
        state.seen += ids
        state.rounds.append(ended)
        state.dropped_tokens += call.result.stats.tokens - keep
        return ended

    def _finish_reason(self, call: Call, keep: int, *, stuck: bool) -> str:
        """The reason why the answer ends here; "" if it continues."""
        if CUE.search(self._state.text):
            return "answer"
        if len(self._state.kept) >= self._params.max_tokens:
            return "length"
        if not call.cut and keep == len(call.tokens):
            return call.result.finish_reason
        return "stuck" if stuck else ""

    def _force(self) -> Iterator[Event]:
        """Append "the answer is" and generate without documents, as DRAGIN's evaluation does."""
        state, session = self._state, self._session
        cue = _tokens(session.engine, session.prompter.cue(begun=bool(state.kept)))
        text = [token.id for token in (*state.kept, *cue)]
        handed = self._hand((), text)
        if len(handed.tokens) + FORCED_TOKENS >= session.engine.context_length:
            return
        state.kept += cue
        state.forced = True
        yield TextAdded(text_of(cue))
        params = self._call_params(max_tokens=FORCED_TOKENS, logprobs=None)
        call = self._make_call(handed, params, state.text)
        for piece in call.pieces():
            if piece:
                yield TextAdded(piece)
        decision = _Decision(reason="forced: no answer yet")
        yield RoundEnded(self._end_round(call, handed, len(call.tokens), decision))


def _tokens(engine: Engine, text: str | Sequence[int]) -> list[Token]:
    """The tokens of a text with their characters."""
    detokenizer = Detokenizer(engine.loaded.tokenizer, ())
    return [Token(each, detokenizer.push(each)) for each in engine.encoder.text(text)]
