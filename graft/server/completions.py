"""`/v1/completions`: complete and streamed responses."""

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from graft.decode.engine import Engine
from graft.decode.output import Result, TokenEvent
from graft.decode.prepared_request import PreparedRequest
from graft.server.errors import ApiError
from graft.server.logprobs import TokenTexts, completion_logprobs
from graft.server.request_builder import RequestBuilder
from graft.server.schema import CompletionRequest
from graft.server.trace import Trace, trace_completion, trace_field
from graft.server.usage import usage_and_metrics
from graft.server.worker import Job, PromptEvent

MAX_TOKENS = 16  # OpenAI's default
TextOrTokens = str | list[int]


def prompts_of(body: CompletionRequest) -> list[TextOrTokens]:
    """The prompts of a request; each is text or token ids."""
    prompt = body.prompt
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        return [cast(TextOrTokens, prompt)]
    return cast(list[TextOrTokens], prompt)


def detokenized(engine: Engine, tokens: list[int]) -> str:
    """The text of token ids; InputError for unknown ones."""
    engine.encoder.text(tokens)
    return engine.loaded.tokenizer.decode(tokens)


@dataclass(slots=True)
class CompletionAnswer:
    """The response in OpenAI's form. Choices are numbered prompt by prompt."""

    named: ClassVar[bool] = False  # whether events have a line with their type
    body: CompletionRequest
    model: str
    texts: TokenTexts
    echoed: list[str] = field(default_factory=list)  # texts of the prompts, with `echo`
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(16)}")
    created: int = field(default_factory=lambda: int(time.time()))
    traces: list[Trace] = field(default_factory=list)  # of each prompt, if requested

    def prepare(self, builder: RequestBuilder, tenant: str) -> list[PreparedRequest]:
        """A request for each prompt; ApiError or InputError for what cannot be served."""
        body, engine = self.body, builder.engine
        if body.documents or body.corpora:
            raise ApiError(
                "documents and corpora need a chat; send draft_texts to draft from texts",
                param="documents" if body.documents else "corpora",
            )
        if body.best_of not in (None, body.n):
            raise ApiError("best_of must be the same as n", param="best_of")
        if body.echo and body.logprobs is not None:
            raise ApiError("echo with logprobs is not supported", param="echo")
        logprobs = 0 if body.logprobs is None and body.traced else body.logprobs
        params = builder.params(body, max_tokens=body.max_tokens or MAX_TOKENS, logprobs=logprobs)
        requests = []
        for number, prompt in enumerate(prompts_of(body)):
            if isinstance(prompt, str):
                builder.check_size(prompt)
            encoded = engine.encoder.prompt(prompt)
            builder.check_length(encoded, body.max_tokens)
            requests.append(builder.request(encoded, params, body, tenant))
            if body.echo:
                text = prompt if isinstance(prompt, str) else detokenized(engine, prompt)
                self.echoed.append(text)
            if body.traced:
                self.traces.append(trace_completion(body, prompt, number, engine))
        return requests

    @property
    def streaming(self) -> bool:
        """Whether every token needs an event."""
        return self.body.stream or self._by_token

    @property
    def _by_token(self) -> bool:
        """Whether tokens without text need an event, too."""
        return self.body.logprobs is not None or self.body.traced

    def complete(self, results: list[list[Result]], events: list[PromptEvent]) -> dict[str, Any]:
        """The response that is not streamed."""
        choices = []
        for number, answers in enumerate(results):
            for choice, result in enumerate(answers):
                own = [event for at, event in events if (at, event.choice) == (number, choice)]
                text = self._echo(number) + result.text
                index = self._index(number, choice)
                choices.append(self._choice(index, text, own, result.finish_reason))
        return {
            **self._head(),
            "choices": choices,
            **usage_and_metrics(results, steps=self.body.traced),
        }

    async def events(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream."""
        offsets: dict[int, int] = {}  # characters of each choice so far
        if self.body.echo:
            for number in range(len(job.streams)):
                for choice in range(self.body.n):
                    yield self._chunk(self._index(number, choice), self._echo(number))
        async for number, event in job.tokens():
            index = self._index(number, event.choice)
            if event.text or self._by_token:
                yield self._chunk(index, event.text, event, offsets.get(index, 0))
                offsets[index] = offsets.get(index, 0) + len(event.text)
        results = job.results
        for number, answers in enumerate(results):
            for choice, result in enumerate(answers):
                index = self._index(number, choice)
                yield {
                    **self._head(),
                    "choices": [self._choice(index, "", [], result.finish_reason, plain=True)],
                }
        if self.body.stream_options and self.body.stream_options.include_usage:
            yield {
                **self._head(),
                "choices": [],
                **usage_and_metrics(results, steps=self.body.traced),
            }

    def _index(self, number: int, choice: int) -> int:
        return number * self.body.n + choice

    def _echo(self, number: int) -> str:
        return self.echoed[number] if self.body.echo else ""

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }

    def _chunk(
        self, index: int, text: str, event: TokenEvent | None = None, offset: int = 0
    ) -> dict[str, Any]:
        events = [event] if event else []
        choice = self._choice(index, text, events, None, plain=event is None, offset=offset)
        return {**self._head(), "choices": [choice]}

    def _choice(
        self,
        index: int,
        text: str,
        events: list[TokenEvent],
        finish: str | None,
        *,
        plain: bool = False,
        offset: int = 0,
    ) -> dict[str, Any]:
        with_logprobs = self.body.logprobs is not None and not plain
        return {
            "index": index,
            "text": text,
            "logprobs": completion_logprobs(events, self.texts, offset) if with_logprobs else None,
            "finish_reason": finish,
            **trace_field(self.traces[index // self.body.n] if self.traces else None, events),
        }
