"""`/v1/chat/completions`: complete and streamed responses."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from graft.decode.output import Result, TokenEvent
from graft.decode.prepared_request import PreparedRequest
from graft.server.adaptive import AdaptiveChat, Rounds, prepare_adaptive
from graft.server.errors import ApiError
from graft.server.logprobs import TokenTexts, chat_logprobs
from graft.server.messages import URL_CITATION, PreparedChat, prepare_chat
from graft.server.request_builder import RequestBuilder
from graft.server.schema import ChatRequest, NamedTool, Retrieval, plain_text
from graft.server.tools import Call, CallReader, offered, required_calls, required_schema
from graft.server.trace import Trace, trace_chat, trace_field
from graft.server.usage import usage_and_metrics
from graft.server.worker import Job, PromptEvent


@dataclass(frozen=True, slots=True)
class Prepared:
    """The engine's request, its documents, and the trace or rounds if they are requested."""

    request: PreparedRequest
    chat: PreparedChat | AdaptiveChat
    trace: Trace | None
    rounds: Callable[[], dict[str, Any]] | None = None


def prepare(body: ChatRequest, builder: RequestBuilder, tenant: str) -> Prepared:
    """Prepare a chat; ApiError or InputError for what cannot be served."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs", param="top_logprobs")
    builder.check_size("".join(plain_text(message.content) for message in body.messages))
    limit = body.max_completion_tokens or body.max_tokens
    params = builder.params(
        body,
        max_tokens=limit,
        logprobs=(body.top_logprobs or 0) if body.logprobs or body.traced else None,
    )
    chat = prepare_chat(builder.engine, body.messages, offered(body), body.chat_template_kwargs)
    chat = builder.with_documents(chat, body, params, tenant)
    prompt = chat.encode()
    if not chat.documents:  # documents take half of the context if the answer leaves less
        builder.check_length(prompt, limit)
    request = builder.request(prompt, params, body, tenant, required_schema(body))
    trace = trace_chat(body, chat, builder.engine) if body.traced else None
    return Prepared(request, chat, trace)


@dataclass(slots=True)
class ChatAnswer:
    """The response in OpenAI's form."""

    named: ClassVar[bool] = False  # whether events have a line with their type
    body: ChatRequest
    model: str
    texts: TokenTexts
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(16)}")
    created: int = field(default_factory=lambda: int(time.time()))
    prepared: Prepared = field(init=False)  # set by `prepare`

    def prepare(self, builder: RequestBuilder, tenant: str) -> list[PreparedRequest]:
        """See `prepare`."""
        self.prepared = prepare(self.body, builder, tenant)
        return [self.prepared.request]

    def start_rounds(
        self, options: Retrieval, builder: RequestBuilder, tenant: str
    ) -> list[Rounds]:
        """Begin an answer with adaptive retrieval."""
        chat = prepare_adaptive(self.body, options, builder, tenant)
        self.prepared = Prepared(chat.request, chat, None, chat.as_field)
        return [chat.start()]

    @property
    def streaming(self) -> bool:
        """Whether every token needs an event."""
        return self.body.stream or self._by_token

    @property
    def _by_token(self) -> bool:
        """Whether tokens without text need an event, too."""
        return self.body.logprobs or self.body.traced

    def complete(self, results: list[list[Result]], events: list[PromptEvent]) -> dict[str, Any]:
        """The response that is not streamed."""
        choices = []
        for index, result in enumerate(results[0]):
            own = [event for _, event in events if event.choice == index]
            choices.append(self._choice(index, result, own))
        return {
            **self._head("chat.completion"),
            "choices": choices,
            **self._selection(),
            **usage_and_metrics(results, steps=self.body.traced),
        }

    async def events(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream: one for every token, the finish reasons, the usage."""
        readers = [self._reader() for _ in range(self.body.n)]
        contents: dict[int, str] = {}  # of each choice so far
        async for _, event in job.tokens():
            if event.choice not in contents:  # clients take it for the first token
                begun, contents[event.choice] = bool(contents), ""
                chunk = self._chunk(event.choice, {"role": "assistant", "content": ""})
                yield chunk if begun else {**chunk, **self._selection()}
            content, calls = self._read(readers[event.choice], event.text)
            contents[event.choice] += content
            if content or self._by_token:
                yield self._chunk(event.choice, {"content": content}, event)
            for number, call in enumerate(calls, len(readers[event.choice].calls) - len(calls)):
                yield self._chunk(event.choice, _call_delta(number, call))
        results = job.results
        for index, result in enumerate(results[0]):
            content = contents.get(index, "")
            for delta in self._rest(readers[index], result):
                content += delta.get("content", "")
                yield self._chunk(index, delta)
            finish = _reason(result, called=bool(readers[index].calls))
            annotations = await asyncio.to_thread(self._annotations, content)
            chunk = self._chunk(index, annotations, finish=finish)
            chunk["choices"][0] |= self._retrieval()
            yield chunk
        if self.body.stream_options and self.body.stream_options.include_usage:
            yield {
                **self._head("chat.completion.chunk"),
                "choices": [],
                **usage_and_metrics(results, steps=self.body.traced),
            }

    def _choice(self, index: int, result: Result, events: list[TokenEvent]) -> dict[str, Any]:
        reader = self._reader()
        text, _ = self._read(reader, result.text)
        text += "".join(delta.get("content", "") for delta in self._rest(reader, result))
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if reader.calls:
            message["content"] = text.strip() or None
            message["tool_calls"] = [call.as_dict() for call in reader.calls]
        message |= self._annotations(message["content"] or "")
        logprobs = chat_logprobs(events, self.texts) if self.body.logprobs else None
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": _reason(result, called=bool(reader.calls)),
            **trace_field(self.prepared.trace, events),
            **self._retrieval(),
        }

    def _selection(self) -> dict[str, Any]:
        """The field `documents` of the response or of its first chunk: the passages used."""
        selection = self.prepared.chat.selection
        return {"documents": selection} if selection else {}

    def _retrieval(self) -> dict[str, Any]:
        """The field of a choice with adaptive retrieval."""
        return {"retrieval": self.prepared.rounds()} if self.prepared.rounds else {}

    def _annotations(self, content: str) -> dict[str, Any]:
        """The field of a message; absent without documents."""
        chat = self.prepared.chat
        if not chat.documents:
            return {}
        return {"annotations": [{"type": URL_CITATION, URL_CITATION: citation}
                                for citation in chat.citations(content)]}  # fmt: skip

    @property
    def _required(self) -> bool:
        choice = self.body.tool_choice
        return choice == "required" or isinstance(choice, NamedTool)

    def _reader(self) -> CallReader:
        return CallReader(None if self.body.parallel_tool_calls else 1)

    def _read(self, reader: CallReader, text: str) -> tuple[str, list[Call]]:
        """Text and complete tool calls; required calls are parsed at the end."""
        if self._required:
            return "", []
        return reader.push(text) if offered(self.body) else (text, [])

    def _rest(self, reader: CallReader, result: Result) -> list[dict[str, Any]]:
        """The deltas that follow the last token."""
        before = len(reader.calls)
        if self._required:
            reader.calls += required_calls(result.text, self.body.tool_choice)
            text = "" if reader.calls else result.text
        else:
            text = reader.finish()
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
        if event is not None and self.body.logprobs:
            logprobs = chat_logprobs([event], self.texts)
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        choice |= trace_field(self.prepared.trace, [event] if event else [])
        return {**self._head("chat.completion.chunk"), "choices": [choice]}


def _call_delta(number: int, call: Call) -> dict[str, Any]:
    return {"tool_calls": [{"index": number, **call.as_dict()}]}


def _reason(result: Result, *, called: bool) -> str:
    return "tool_calls" if called and result.finish_reason == "stop" else result.finish_reason
