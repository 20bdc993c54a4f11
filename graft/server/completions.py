"""`/v1/completions`: texts that go on."""

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from graft.decode.engine import Engine
from graft.decode.output import Result, TokenEvent
from graft.decode.prepared_request import PreparedRequest
from graft.decode.text import Prompt
from graft.server.asking import Asking
from graft.server.failures import Refusal
from graft.server.logprobs import TokenTexts, completion_logprobs
from graft.server.schema import CompletionRequest
from graft.server.trace import Trace, is_traced, trace_completion
from graft.server.usage import metrics_block, usage
from graft.server.worker import Job, Told

MAX_TOKENS = 16  # OpenAI's default


def prompts_of(asked: CompletionRequest) -> list[Prompt]:
    """The prompts: one, or a list of them; each is text or token ids."""
    prompt = asked.prompt
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def prepare(asked: CompletionRequest, asking: Asking, tenant: str) -> list[PreparedRequest]:
    """A request for each prompt, after everything that may refuse it."""
    if asked.best_of not in (None, asked.n):
        raise Refusal("best_of is not supported; leave it out or give the same as n",
                      param="best_of")  # fmt: skip
    if asked.echo and asked.logprobs is not None:
        raise Refusal("echo with logprobs is not supported", param="echo")
    wanted = 0 if asked.logprobs is None and is_traced(asked) else asked.logprobs
    params = asking.params(asked, max_tokens=asked.max_tokens or MAX_TOKENS, logprobs=wanted)
    requests = []
    for prompt in prompts_of(asked):
        if isinstance(prompt, str):
            asking.check_size(prompt)
        encoded = asking.engine.encoder.prompt(prompt)
        requests.append(asking.request(encoded, params, asked, tenant))
    return requests


def detokenized(engine: Engine, tokens: list[int]) -> str:
    """The text of token ids; InputError for unknown ones."""
    engine.encoder.text(tokens)
    return engine.loaded.tokenizer.decode(tokens)


def _as_text(engine: Engine, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else detokenized(engine, prompt)


@dataclass(slots=True)
class CompletionAnswer:
    """Makes OpenAI's objects of a job. Choices are numbered prompt by prompt."""

    named: ClassVar[bool] = False  # its events
    asked: CompletionRequest
    model: str
    texts: TokenTexts
    echoed: list[str] = field(default_factory=list)  # the prompts' texts, where they are repeated
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(16)}")
    created: int = field(default_factory=lambda: int(time.time()))
    traces: list[Trace] = field(default_factory=list)  # of each prompt, where they are wanted

    def prepare(self, asking: Asking, tenant: str) -> list[PreparedRequest]:
        """See `prepare`."""
        requests = prepare(self.asked, asking, tenant)
        if self.asked.echo:
            self.echoed = [_as_text(asking.engine, prompt) for prompt in prompts_of(self.asked)]
        if is_traced(self.asked):
            self.traces = [
                trace_completion(self.asked, prompt, number, asking.engine)
                for number, prompt in enumerate(prompts_of(self.asked))
            ]
        return requests

    @property
    def heard(self) -> bool:
        """Whether the tokens are needed one by one."""
        return self.asked.stream or self._by_token

    @property
    def _by_token(self) -> bool:
        """Whether something is said of every token, also of one without text."""
        return self.asked.logprobs is not None or is_traced(self.asked)

    def whole(self, results: list[list[Result]], told: list[Told]) -> dict[str, Any]:
        """The answer at once."""
        choices = []
        for number, answers in enumerate(results):
            for choice, result in enumerate(answers):
                events = [
                    event for whose, event in told if (whose, event.choice) == (number, choice)
                ]
                text = self._echo(number) + result.text
                index = self._index(number, choice)
                choices.append(self._choice(index, text, events, result.finish_reason))
        return {
            **self._head(),
            "choices": choices,
            "usage": usage(results),
            "metrics": metrics_block(results, steps=is_traced(self.asked)),
        }

    async def events(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        """The answer as it is written."""
        shown: dict[int, int] = {}  # characters of each choice
        if self.asked.echo:
            for number in range(len(job.streams)):
                for choice in range(self.asked.n):
                    yield self._chunk(self._index(number, choice), self._echo(number))
        async for number, event in job.tokens():
            index = self._index(number, event.choice)
            if event.text or self._by_token:
                yield self._chunk(index, event.text, event, shown.get(index, 0))
                shown[index] = shown.get(index, 0) + len(event.text)
        results = job.results
        for number, answers in enumerate(results):
            for choice, result in enumerate(answers):
                index = self._index(number, choice)
                yield {
                    **self._head(),
                    "choices": [self._choice(index, "", [], result.finish_reason, plain=True)],
                }
        if self.asked.stream_options and self.asked.stream_options.include_usage:
            yield {
                **self._head(),
                "choices": [],
                "usage": usage(results),
                "metrics": metrics_block(results, steps=is_traced(self.asked)),
            }

    def _index(self, number: int, choice: int) -> int:
        return number * self.asked.n + choice

    def _echo(self, number: int) -> str:
        return self.echoed[number] if self.asked.echo else ""

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
        wanted = self.asked.logprobs is not None and not plain
        return {
            "index": index,
            "text": text,
            "logprobs": completion_logprobs(events, self.texts, offset) if wanted else None,
            "finish_reason": finish,
            **self._traced(index, events),
        }

    def _traced(self, index: int, events: list[TokenEvent]) -> dict[str, Any]:
        if not self.traces or not events:
            return {}
        return {"trace": self.traces[index // self.asked.n].entries(events)}
