"""One question on its way to an answer: look up, write, judge, round by round.

The loop is DRAGIN's (Su et al. 2024). It differs in two points: a call ends where what it would go
on to write could not be kept, and an answer that has been announced is finished before the loop
ends. Each call has a seed of its own that follows from the answer's: the same seed gives the same
text with every draft and with every exact reuse.
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
from graft.rag.answer import CUE, Answer, Made, Round, Tally, extract
from graft.rag.call import Call
from graft.rag.corpus import Hit
from graft.rag.parts import PASSAGE, Part
from graft.rag.policy import Plan, Token, Tokens, Written, never, text_of
from graft.rag.prompt import quotable
from graft.rag.round_reuse import Handed, reused
from graft.sampling import SamplingParams, choose_seed

if TYPE_CHECKING:
    from graft.rag.session import Session

QUERY_TOKENS = 64  # the last ones of a query count
FORCED_TOKENS = 20  # for an answer that had to be asked for
_SEED_STEP = 0x9E3779B97F4A7C15  # odd: no two calls of an answer share a seed


@dataclass(frozen=True, slots=True)
class Searched:
    """Passages were looked up for the round that begins."""

    number: int
    query: str
    reason: str
    hits: Sequence[Hit]


@dataclass(frozen=True, slots=True)
class Wrote:
    """Text that stays."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A round is over."""

    round: Round


Event = Searched | Wrote | Ended


@dataclass(slots=True)
class _State:
    """An answer on its way."""

    kept: list[Token] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)  # ids of passages, in the order of the rounds
    hits: Sequence[Hit] = ()  # of the last search
    tally: Tally = field(default_factory=Tally)
    finish_reason: str = ""
    forced: bool = False
    lossless: bool = True  # so far

    @property
    def text(self) -> str:
        return text_of(self.kept)


class AnswerStream:
    """Iterate for the events of an answer; `answer` is there when they are through.

    An iteration that is given up ends the call under way.
    """

    def __init__(self, session: "Session", question: str, params: SamplingParams) -> None:
        self._session, self._question, self._params = session, question, params
        self._name = uuid4().hex  # the same question asked twice is two
        self._seed = choose_seed() if params.seed is None else params.seed
        self._state = _State()
        self._asked = _tokens(session.engine, f"{question}\n")
        self._seconds = self._head_seconds = 0.0
        self._events = self._run()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def close(self) -> None:
        """Stop here; safe to call at any time."""
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
            rounds=tuple(state.tally.rounds),
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
            totals=state.tally.totals(
                self._seconds,
                head_tokens=len(session.prompter.head.tokens),
                head_seconds=self._head_seconds,
            ),
        )

    def _run(self) -> Iterator[Event]:
        """Round by round; the clock runs while this does, not while the caller does."""
        self._head_seconds = self._session.read_demonstrations()
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
        state = self._state
        plan: Plan | None = self._session.policy.first(self._question)
        while plan is not None:
            plan = yield from self._round(plan)
        if self._session.force_answer and not CUE.search(state.text):
            yield from self._force()

    def _round(self, plan: Plan) -> Iterator[Event]:
        """Look up, write, judge; returns the plan of the next round, None if there is none."""
        state, policy = self._state, self._session.policy
        last = plan.query is not None and state.tally.retrievals >= self._session.most_rounds
        if last:  # go on to the end with what was found
            plan = Plan(0, None, certain=True, reason="no more rounds")
        grounded = last or plan.query is not None
        looked = _Looked()
        if plan.query is not None:
            looked = self._look_up(plan)
            yield Searched(len(state.tally.rounds) + 1, looked.query, plan.reason, state.hits)
        call, handed = self._call(plan.enough, grounded=grounded)
        for piece in call.pieces():
            if plan.certain and piece:
                yield Wrote(piece)
        began = clock()
        following = policy.next(
            Written(self._asked, tuple(state.kept), tuple(call.tokens), grounded)
        )
        looked = replace(looked, reason=plan.reason, judging_seconds=clock() - began)
        keep = len(call.tokens) if plan.certain else following.keep
        if not plan.certain and keep:
            yield Wrote(text_of(call.tokens[:keep]))
        yield Ended(self._take(call, handed, keep, looked))
        stuck = last or (keep == 0 and (grounded or following.query is None))
        state.finish_reason = self._finish_reason(call, keep, stuck=stuck)
        return None if state.finish_reason else following

    def _look_up(self, plan: Plan) -> "_Looked":
        """Search for the last tokens of a plan's query; the question where it has none."""
        encoder, tokenizer = self._session.engine.encoder, self._session.engine.loaded.tokenizer
        query = plan.query or self._question
        tokens = encoder.text(query)
        if len(tokens) > QUERY_TOKENS:
            query = tokenizer.decode(tokens[-QUERY_TOKENS:], skip_special_tokens=True).strip()
        began = clock()
        self._state.hits = self._session.corpus.search(query, self._session.passages)
        return _Looked(query, seconds=clock() - began)

    def _call(self, enough: Callable[[Tokens], bool], *, grounded: bool) -> tuple[Call, Handed]:
        """Go on from the text so far, with the passages of the last search or with none."""
        state, session = self._state, self._session
        text = [token.id for token in state.kept]
        handed = self._hand(state.hits if grounded else (), text)
        scored = session.policy.scored and not grounded
        most = self._params.max_tokens - len(text)
        params = self._own_params(max_tokens=most, logprobs=0 if scored else None)
        return self._make_call(handed, params, state.text, enough), handed

    def _hand(self, hits: Sequence[Hit], text: list[int]) -> Handed:
        """A prompt with these passages, and what is reused of it."""
        session = self._session
        parts: list[Part] = session.prompter.parts(self._question, hits, self._state.seen, text)
        return session.reuse.hand(parts, self._name)

    def _own_params(self, *, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """The answer's parameters for the call that comes next."""
        return replace(
            self._params,
            seed=(self._seed + len(self._state.tally.rounds) * _SEED_STEP) % (1 << 64),
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

    def _take(self, call: Call, handed: Handed, keep: int, looked: "_Looked") -> Round:
        """Keep the first tokens of what a call wrote, and write the round down."""
        state = self._state
        ids = [part.id for part in handed.parts if part.kind == PASSAGE]
        taken = Round(
            number=len(state.tally.rounds) + 1,
            query=looked.query,
            reason=looked.reason,
            hits=tuple(hit for hit in state.hits if hit.passage.id in ids),
            reordered=handed.reordered,
            text=text_of(call.tokens[:keep]),
            dropped=text_of(call.tokens[keep:]),
            reused=reused(handed, call.result.stats.cached_tokens),
            retrieval_seconds=looked.seconds,
            judging_seconds=looked.judging_seconds,
            stats=call.result.stats,
        )
        state.lossless &= call.result.lossless
        state.kept += call.tokens[:keep]
        state.seen += ids
        state.tally.rounds.append(taken)
        state.tally.dropped += call.result.stats.tokens - keep
        return taken

    def _finish_reason(self, call: Call, keep: int, *, stuck: bool) -> str:
        """Why the answer ends here; "" if it does not."""
        if CUE.search(self._state.text):
            return "answer"
        if len(self._state.kept) >= self._params.max_tokens:
            return "length"
        if not call.cut and keep == len(call.tokens):
            return call.result.finish_reason
        return "stuck" if stuck else ""

    def _force(self) -> Iterator[Event]:
        """Ask for the answer in so many words, without documents, as DRAGIN's evaluation does."""
        state, session = self._state, self._session
        cue = _tokens(session.engine, session.prompter.cue(begun=bool(state.kept)))
        text = [token.id for token in (*state.kept, *cue)]
        handed = self._hand((), text)
        if len(handed.tokens) + FORCED_TOKENS >= session.engine.context_length:
            return
        state.kept += cue
        state.forced = True
        yield Wrote(text_of(cue))
        params = self._own_params(max_tokens=FORCED_TOKENS, logprobs=None)
        call = self._make_call(handed, params, state.text)
        for piece in call.pieces():
            if piece:
                yield Wrote(piece)
        looked = _Looked(reason="no answer yet: asked for it")
        yield Ended(self._take(call, handed, len(call.tokens), looked))


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was looked up for a round, and why."""

    query: str | None = None
    reason: str = ""
    seconds: float = 0.0
    judging_seconds: float = 0.0


def _tokens(engine: Engine, text: str | Sequence[int]) -> list[Token]:
    """A text as tokens with the characters each stands for."""
    detokenizer = Detokenizer(engine.loaded.tokenizer, ())
    return [Token(each, detokenizer.push(each)) for each in engine.encoder.text(text)]
