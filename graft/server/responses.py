"""`/v1/responses`, for text only. Nothing is stored."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from graft.decode.output import Result
from graft.decode.prepared_request import PreparedRequest
from graft.server.chat import Prepared, prepare
from graft.server.messages import URL_CITATION
from graft.server.request_builder import RequestBuilder
from graft.server.schema import (
    ChatRequest,
    Message,
    ResponseFormat,
    ResponsesRequest,
    TextRequest,
)
from graft.server.trace import trace_field
from graft.server.usage import metrics_block, usage
from graft.server.worker import Job, PromptEvent


def as_chat(body: ResponsesRequest) -> ChatRequest:
    """The request as a chat request."""
    messages = []
    if body.instructions:
        messages.append(Message(role="system", content=body.instructions))
    if isinstance(body.input, str):
        messages.append(Message(role="user", content=body.input))
    else:
        messages += [Message(role=item.role, content=item.content) for item in body.input]
    fields = {name: getattr(body, name) for name in TextRequest.model_fields}
    wanted = body.text.format if body.text else None
    return ChatRequest(
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        response_format=ResponseFormat(type=wanted.type, json_schema=wanted) if wanted else None,
        **fields,
    )


@dataclass(slots=True)
class ResponseAnswer:
    """The response in OpenAI's form."""

    named: ClassVar[bool] = True  # whether events have a line with their type
    body: ResponsesRequest
    model: str
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(16)}")
    item: str = field(default_factory=lambda: f"msg_{secrets.token_hex(16)}")
    created: int = field(default_factory=lambda: int(time.time()))
    prepared: Prepared = field(init=False)  # set by `prepare`

    def prepare(self, builder: RequestBuilder, tenant: str) -> list[PreparedRequest]:
        """The engine's request; ApiError or InputError for what cannot be served."""
        self.prepared = prepare(as_chat(self.body), builder, tenant)
        return [self.prepared.request]

    @property
    def streaming(self) -> bool:
        """Whether every token needs an event."""
        return self.body.stream or self.body.traced

    def complete(self, results: list[list[Result]], events: list[PromptEvent]) -> dict[str, Any]:
        """The response that is not streamed."""
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
            "metrics": metrics_block(results, steps=self.body.traced),
            **trace_field(self.prepared.trace, [event for _, event in events]),
        }

    async def events(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        """The numbered events of a stream."""
        number = 0
        async for event in self._unnumbered(job):
            yield {**event, "sequence_number": number}
            number += 1

    async def _unnumbered(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        started = self._head("in_progress") | {"output": [], "usage": None}
        place = {"item_id": self.item, "output_index": 0, "content_index": 0}
        empty = self._message("", "in_progress")
        yield {"type": "response.created", "response": started}
        yield {"type": "response.in_progress", "response": started}
        yield {"type": "response.output_item.added", "output_index": 0,
               "item": empty | {"content": []}}  # fmt: skip
        yield {"type": "response.content_part.added", **place, "part": _part("")}
        async for _, event in job.tokens():
            if event.text or self.body.traced:
                yield {"type": "response.output_text.delta", **place, "delta": event.text,
                       "logprobs": [], **trace_field(self.prepared.trace, [event])}  # fmt: skip
        response = await asyncio.to_thread(self.complete, job.results, [])
        [message], status = response["output"], response["status"]
        [part] = message["content"]
        yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}
        yield {"type": "response.output_item.done", "output_index": 0, "item": message}
        yield {"type": f"response.{status}", "response": response}

    def _head(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": self.body.instructions,
            "max_output_tokens": self.body.max_output_tokens,
            "metadata": self.body.metadata or {},
            "model": self.model,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if self.body.temperature is None else self.body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0 if self.body.top_p is None else self.body.top_p,
            "truncation": "disabled",
        }

    def _message(self, text: str, status: str) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self.item,
            "status": status,
            "role": "assistant",
            "content": [_part(text, self.prepared.chat.citations(text))],
        }


def _part(text: str, citations: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    annotations = [{"type": URL_CITATION, **each} for each in citations]
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}
