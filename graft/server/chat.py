"""`/v1/chat/completions`: answers to a chat, whole or as they are written."""

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from graft.decode.output import Result, TokenEvent
from graft.decode.prepared_request import PreparedRequest
from graft.server.asking import Asking
from graft.server.failures import Refusal
from graft.server.logprobs import TokenTexts, chat_logprobs
from graft.server.messages import encode_chat, plain_text
from graft.server.schema import ChatRequest, NamedTool
from graft.server.tools import Call, CallReader, offered, required_calls, required_schema
from graft.server.trace import Trace, is_traced, trace_chat
from graft.server.usage import metrics_block, usage
from graft.server.worker import Job, Told


def prepare(asked: ChatRequest, asking: Asking, tenant: str) -> list[PreparedRequest]:
    """The engine's request, after everything that may refuse it."""
    if asked.top_logprobs is not None and not asked.logprobs:
        raise Refusal("top_logprobs needs logprobs", param="top_logprobs")
    asking.check_size("".join(plain_text(message.content) for message in asked.messages))
    params = asking.params(
        asked,
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
        logprobs=(asked.top_logprobs or 0) if asked.logprobs or is_traced(asked) else None,
    )
    prompt = encode_chat(asking.engine, asked.messages, offered(asked), asked.chat_template_kwargs)
    return [asking.request(prompt, params, asked, tenant, required_schema(asked))]


@dataclass(slots=True)
class ChatAnswer:
    """Makes OpenAI's objects of a job."""

    named: ClassVar[bool] = False  # its events
    asked: ChatRequest
    model: str
    texts: TokenTexts
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(16)}")
    created: int = field(default_factory=lambda: int(time.time()))
    trace: Trace | None = None  # where it is wanted, from `prepare` on

    def prepare(self, asking: Asking, tenant: str) -> list[PreparedRequest]:
        """See `prepare`."""
        requests = prepare(self.asked, asking, tenant)
        if is_traced(self.asked):
            self.trace = trace_chat(self.asked, asking.engine)
        return requests

    @property
    def heard(self) -> bool:
        """Whether the tokens are needed one by one."""
        return self.asked.stream or self._by_token

    @property
    def _by_token(self) -> bool:
        """Whether something is said of every token, also of one without text."""
        return self.asked.logprobs or is_traced(self.asked)

    def whole(self, results: list[list[Result]], told: list[Told]) -> dict[str, Any]:
        """The answer at once."""
        choices = []
        for index, result in enumerate(results[0]):
            events = [event for _, event in told if event.choice == index]
            choices.append(self._choice(index, result, events))
        return {
            **self._head("chat.completion"),
            "choices": choices,
            "usage": usage(results),
            "metrics": metrics_block(results, steps=is_traced(self.asked)),
        }

    async def events(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        """The answer as it is written: a chunk for every token, its end, what it cost."""
        readers = [self._reader() for _ in range(self.asked.n)]
        begun: set[int] = set()
        async for _, event in job.tokens():
            if event.choice not in begun:  # not before: clients take it for the first token
                begun.add(event.choice)
                yield self._chunk(event.choice, {"role": "assistant", "content": ""})
            content, calls = self._read(readers[event.choice], event.text)
            delta = {"content": content} if content or self._by_token else {}
            if delta:
                yield self._chunk(event.choice, delta, event)
            for number, call in enumerate(calls, len(readers[event.choice].calls) - len(calls)):
                yield self._chunk(event.choice, _call_delta(number, call))
        results = job.results
        for index, result in enumerate(results[0]):
            for delta in self._rest(readers[index], result):
                yield self._chunk(index, delta)
            called = bool(readers[index].calls)
            yield self._chunk(index, {}, finish=_reason(result, called=called))
        if self.asked.stream_options and self.asked.stream_options.include_usage:
            yield {
                **self._head("chat.completion.chunk"),
                "choices": [],
                "usage": usage(results),
                "metrics": metrics_block(results, steps=is_traced(self.asked)),
            }

    def _choice(self, index: int, result: Result, events: list[TokenEvent]) -> dict[str, Any]:
        reader = self._reader()
        text, _ = self._read(reader, result.text)
        text += "".join(delta.get("content", "") for delta in self._rest(reader, result))
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if reader.calls:
            message["content"] = text.strip() or None
            message["tool_calls"] = [call.as_dict() for call in reader.calls]
        logprobs = chat_logprobs(events, self.texts) if self.asked.logprobs else None
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": _reason(result, called=bool(reader.calls)),
            **self._traced(events),
        }

    def _traced(self, events: list[TokenEvent]) -> dict[str, Any]:
        return {"trace": self.trace.entries(events)} if self.trace and events else {}

    @property
    def _required(self) -> bool:
        choice = self.asked.tool_choice
        return choice == "required" or isinstance(choice, NamedTool)

    def _reader(self) -> CallReader:
        return CallReader(None if self.asked.parallel_tool_calls else 1)

    def _read(self, reader: CallReader, text: str) -> tuple[str, list[Call]]:
        """The text to show, and calls that are complete; required ones are read at the end."""
        if self._required:
            return "", []
        return reader.push(text) if offered(self.asked) else (text, [])

    def _rest(self, reader: CallReader, result: Result) -> list[dict[str, Any]]:
        """What is left to say when an answer has ended."""
        before = len(reader.calls)
        if self._required:
            reader.calls += required_calls(result.text, self.asked.tool_choice)
            text = "" if reader.calls else result.text
        else:
            text, _ = reader.finish()
        deltas = [{"content": text}] if text else []
        return deltas + [_call_delta(i, call) for i, call in enumerate(reader.calls) if i >= before]

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        event: TokenEvent | None = None,
        finish: str | None = None,
    ) -> dict[str, Any]:
        logprobs = None
        if event is not None and self.asked.logprobs:
            logprobs = chat_logprobs([event], self.texts)
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        choice |= self._traced([event] if event else [])
        return {**self._head("chat.completion.chunk"), "choices": [choice]}


def _call_delta(number: int, call: Call) -> dict[str, Any]:
    return {"tool_calls": [{"index": number, **call.as_dict()}]}


def _reason(result: Result, *, called: bool) -> str:
    return "tool_calls" if called and result.finish_reason == "stop" else result.finish_reason
