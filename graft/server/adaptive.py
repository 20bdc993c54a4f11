"""Adaptive retrieval in a chat: `graft ask`'s policies over the documents of a request.

An answer runs in a thread of its own, which retrieves and decides between calls of the model. Its
calls are in the same batch as all other requests.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from graft.decode.output import Result, TokenEvent
from graft.decode.prepared_request import PreparedRequest
from graft.decode.stats import Stats
from graft.decode.text import EncodedPrompt
from graft.documents import Document
from graft.rag.answer import Answer
from graft.rag.answering import AnswerStream, TextAdded
from graft.rag.call import CancelledCallError
from graft.rag.document_cache import DocumentCache
from graft.rag.families import find_family
from graft.rag.session import Session
from graft.server.errors import ApiError
from graft.server.messages import citations
from graft.server.passages import Passages
from graft.server.request_builder import RequestBuilder
from graft.server.schema import ChatRequest, Retrieval, plain_text

CACHE_BYTES = 256 << 20  # of the rows that the rounds of one answer reuse
UNSUPPORTED = (
    "tools", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "logprobs", "chat_template_kwargs",
)  # fmt: skip


class Rounds:
    """An adaptive answer, for the worker like a `Stream`; the thread begins at once."""

    def __init__(self, answering: AnswerStream) -> None:
        self._answering = answering
        self._events: deque[TokenEvent] = deque()
        self._blank = ""  # at the end of the text so far
        self._begun = self.done = False
        self.error: BaseException | None = None
        threading.Thread(target=self._run, name="graft-rounds", daemon=True).start()

    def _run(self) -> None:
        try:
            for event in self._answering:
                if isinstance(event, TextAdded):
                    self._add(event.text)
        except CancelledCallError:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.done = True

    def _add(self, text: str) -> None:
        """Add an event; blanks at the beginning and the end of the answer are dropped."""
        text = self._blank + text if self._begun else text.lstrip()
        shown = text.rstrip()
        self._blank, self._begun = text[len(shown) :], self._begun or bool(shown)
        if shown:
            self._events.append(TokenEvent(-1, shown, "", 0))

    def ready(self) -> bool:
        """See `Stream`."""
        return bool(self._events) or self.done

    def take_available(self) -> list[TokenEvent]:
        """See `Stream`; an event has the text of one or several tokens."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def close(self) -> None:
        """End the answer; any thread may call it, also twice."""
        self._answering.cancel()

    @property
    def prefill_progress(self) -> tuple[int, int]:
        """See `Stream`; of the running call."""
        return self._answering.prefill_progress

    @property
    def answer(self) -> Answer:
        """The answer so far, in whole rounds."""
        return self._answering.answer

    @property
    def result(self) -> Result:
        """The same as a result; the statistics are sums over the rounds."""
        answer = self.answer
        every, totals = [each.stats for each in answer.rounds], answer.totals
        stats = replace(
            Stats.together(every),
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            tokens=totals.tokens,
            prefill_seconds=totals.prefill_seconds,
            decode_seconds=totals.decode_seconds,
        )
        reason = answer.finish_reason
        reason = reason if reason in ("length", "cancelled") else "stop"
        ids, seed = list(answer.token_ids), answer.made.seed
        return Result(answer.text, ids, reason, seed, stats, promise=self._answering.promise)


@dataclass(slots=True)
class AdaptiveChat:
    """A session for the question of a chat, ready to start."""

    request: PreparedRequest
    passages: Passages
    answering: AnswerStream
    rounds: Rounds = field(init=False)
    selection: ClassVar[None] = None  # each round selects passages

    def start(self) -> Rounds:
        """Begin to answer."""
        self.rounds = Rounds(self.answering)
        return self.rounds

    @property
    def documents(self) -> Sequence[Document]:
        """Those that are searched."""
        return self.passages.documents

    def citations(self, text: str) -> list[dict[str, Any]]:
        """OpenAI's citations of the passages in the prompts."""
        return citations(text, self.documents, self.passages.excerpts(self.rounds.answer))

    def as_field(self) -> dict[str, Any]:
        """The field `retrieval` of a choice."""
        answer = self.rounds.answer
        return {
            "policy": answer.made.policy,
            "answer": answer.answer,
            "finish_reason": answer.finish_reason,
            "forced": answer.forced,
            "seed": answer.made.seed,
            "rounds": [each.as_dict() for each in answer.rounds],
        }


def prepare_adaptive(
    body: ChatRequest, options: Retrieval, builder: RequestBuilder, tenant: str
) -> AdaptiveChat:
    """Prepare an adaptive answer; ApiError or InputError for what cannot be served."""
    _check(body)
    question = plain_text(body.messages[0].content)
    builder.check_size(question)
    limit = body.max_completion_tokens or body.max_tokens or find_family(options.family).max_tokens
    params = builder.params(body, max_tokens=limit, logprobs=None)
    passages = builder.passages(body, tenant)
    request = builder.request(EncodedPrompt([], []), params, body, tenant)
    session = Session(
        builder.engine,
        passages.corpus,
        policy=options.policy,
        threshold=options.threshold,
        thresholds=options.thresholds,
        passages=options.passages,
        max_rounds=options.rounds,
        family=options.family,
        reuse=DocumentCache(builder.engine, max_bytes=CACHE_BYTES),
        base=request,
    )
    return AdaptiveChat(request, passages, session.stream(question, params))


def _check(body: ChatRequest) -> None:
    wrong = [name for name in UNSUPPORTED if getattr(body, name)]
    wrong += ["speculative.trace"] if body.traced else []
    if wrong:
        raise ApiError(f"{wrong[0]} cannot be combined with retrieval", param=wrong[0])
    if body.n > 1:
        raise ApiError("retrieval gives one answer; leave n at 1", param="n")
    if [message.role for message in body.messages] != ["user"]:
        raise ApiError("retrieval answers one question: send one user message", param="messages")
