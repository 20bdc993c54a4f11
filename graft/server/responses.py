"""`/v1/responses`: OpenAI's newer route, text in and text out. Nothing is stored."""

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from graft.decode.output import Result, TokenEvent
from graft.decode.prepared_request import PreparedRequest
from graft.server.asking import Asking
from graft.server.chat import prepare
from graft.server.schema import (
    ChatRequest,
    JsonSchema,
    Message,
    ResponseFormat,
    ResponsesRequest,
    TextFormat,
    TextRequest,
)
from graft.server.trace import Trace, is_traced, trace_chat
from graft.server.usage import metrics_block, usage
from graft.server.worker import Job, Told


def as_chat(asked: ResponsesRequest) -> ChatRequest:
    """The same as a chat."""
    messages = []
    if asked.instructions:
        messages.append(Message(role="system", content=asked.instructions))
    if isinstance(asked.input, str):
        messages.append(Message(role="user", content=asked.input))
    else:
        messages += [Message(role=item.role, content=item.content) for item in asked.input]
    fields = {name: getattr(asked, name) for name in TextRequest.model_fields}
    wanted = asked.text.format if asked.text else None
    return ChatRequest(
        messages=messages,
        max_completion_tokens=asked.max_output_tokens,
        response_format=_response_format(wanted) if wanted else None,
        **fields,
    )


def _response_format(wanted: TextFormat) -> ResponseFormat:
    schema = None
    if wanted.type == "json_schema":
        schema = JsonSchema(name=wanted.name, schema=wanted.schema_ or {"type": "object"})
    return ResponseFormat(type=wanted.type, json_schema=schema)


@dataclass(slots=True)
class ResponseAnswer:
    """Makes OpenAI's objects of a job."""

    named: ClassVar[bool] = True  # its events
    asked: ResponsesRequest
    model: str
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(16)}")
    item: str = field(default_factory=lambda: f"msg_{secrets.token_hex(16)}")
    created: int = field(default_factory=lambda: int(time.time()))
    trace: Trace | None = None  # where it is wanted, from `prepare` on

    def prepare(self, asking: Asking, tenant: str) -> list[PreparedRequest]:
        """The engine's request, after everything that may refuse it."""
        chat = as_chat(self.asked)
        requests = prepare(chat, asking, tenant)
        if is_traced(self.asked):
            self.trace = trace_chat(chat, asking.engine)
        return requests

    @property
    def heard(self) -> bool:
        """Whether the tokens are needed one by one."""
        return self.asked.stream or is_traced(self.asked)

    def whole(self, results: list[list[Result]], told: list[Told]) -> dict[str, Any]:
        """The answer at once."""
        [[result]] = results
        cut = result.finish_reason == "length"
        costs = usage(results)
        return {
            **self._head("incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._message(result.text, "incomplete" if cut else "completed")],
            "usage": {
                "input_tokens": costs["prompt_tokens"],
                "input_tokens_details": costs["prompt_tokens_details"],
                "output_tokens": costs["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0}
                | costs["completion_tokens_details"],
                "total_tokens": costs["total_tokens"],
            },
            "metrics": metrics_block(results, steps=is_traced(self.asked)),
            **self._traced([event for _, event in told]),
        }

    def _traced(self, events: list[TokenEvent]) -> dict[str, Any]:
        return {"trace": self.trace.entries(events)} if self.trace and events else {}

    async def events(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        """The answer as it is written, in numbered events."""
        number = 0
        async for event in self._unnumbered(job):
            yield {**event, "sequence_number": number}
            number += 1

    async def _unnumbered(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        begun = self._head("in_progress") | {"output": [], "usage": None}
        place = {"item_id": self.item, "output_index": 0, "content_index": 0}
        empty, status = self._message("", "in_progress"), "completed"
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        yield {"type": "response.output_item.added", "output_index": 0,
               "item": empty | {"content": []}}  # fmt: skip
        yield {"type": "response.content_part.added", **place, "part": _part("")}
        async for _, event in job.tokens():
            if event.text or self.trace:
                yield {"type": "response.output_text.delta", **place, "delta": event.text,
                       "logprobs": [], **self._traced([event])}  # fmt: skip
        whole = self.whole(job.results, [])
        [message], status = whole["output"], whole["status"]
        text = message["content"][0]["text"]
        yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": _part(text)}
        yield {"type": "response.output_item.done", "output_index": 0, "item": message}
        yield {"type": f"response.{status}", "response": whole}

    def _head(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": self.asked.instructions,
            "max_output_tokens": self.asked.max_output_tokens,
            "metadata": self.asked.metadata or {},
            "model": self.model,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if self.asked.temperature is None else self.asked.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0 if self.asked.top_p is None else self.asked.top_p,
            "truncation": "disabled",
        }

    def _message(self, text: str, status: str) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self.item,
            "status": status,
            "role": "assistant",
            "content": [_part(text)],
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
