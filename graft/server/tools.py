"""Tools: how they enter the prompt, and how tool calls are parsed.

Calls have the form of Hermes and Qwen models: `<tool_call>{"name": ..., "arguments":
{...}}</tool_call>`. If the chat template has no `tools`, the system message describes them, in
Hermes' words. A grammar enforces required calls.
"""

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from graft.decode.text import overlap
from graft.errors import InputError
from graft.server.schema import ChatRequest, NamedTool, Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ARGUMENTS = ("arguments", "parameters")
EXPLAINED = """\
You may call functions. Their signatures are between <tools> and </tools>:
<tools>
{tools}
</tools>
For each call write a JSON object with the function's name and arguments between <tool_call> and \
</tool_call>:
<tool_call>
{{"name": "function-name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the model; `arguments` is JSON."""

    name: str
    arguments: str

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's form, with a new id."""
        return {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


def offered(request: ChatRequest) -> list[Tool]:
    """The tools that enter the prompt."""
    if request.tool_choice == "required" and not request.tools:
        raise InputError("tool_choice needs tools")
    if isinstance(request.tool_choice, NamedTool):
        name = request.tool_choice.function.name
        if not any(tool.function.name == name for tool in request.tools or []):
            raise InputError(f"tool_choice names {name!r}, which is not among the tools")
    return [] if request.tool_choice == "none" else list(request.tools or [])


def required_schema(request: ChatRequest) -> dict[str, Any] | None:
    """The JSON schema of a required call: the arguments of a named function, or a list of calls;
    None if no call is required."""
    if isinstance(request.tool_choice, NamedTool):
        name = request.tool_choice.function.name
        return next(t.function.parameters for t in request.tools or () if t.function.name == name)
    if request.tool_choice != "required":
        return None
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "parameters": tool.function.parameters,
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for tool in request.tools or ()
    ]
    schema: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1}
    if not request.parallel_tool_calls:
        schema["maxItems"] = 1
    return schema


def explain(messages: list[dict[str, Any]], tools: list[Tool]) -> list[dict[str, Any]]:
    """The chat for a template without tools: messages describe the tools and earlier calls."""
    lines = "\n".join(json.dumps(tool.model_dump(exclude_none=True)) for tool in tools)
    described = [_calls_as_text(message) for message in messages]
    if not tools:
        return described
    text = EXPLAINED.format(tools=lines)
    if described[0]["role"] == "system":
        first = {**described[0], "content": f"{described[0]['content']}\n\n{text}"}
        return [first, *described[1:]]
    return [{"role": "system", "content": text}, *described]


def _calls_as_text(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    blocks = [f"{OPEN}\n{json.dumps(call['function'])}\n{CLOSE}" for call in calls]
    parts = [message["content"], *blocks] if message["content"] else blocks
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join(parts)}


def call_for_template(call: ToolCall) -> dict[str, Any]:
    """An earlier call for the chat template, with the arguments as an object."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError:
        raise InputError("the arguments of a tool call must be JSON") from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def required_calls(text: str, choice: str | NamedTool | None) -> list[Call]:
    """The calls in a text that matches `required_schema`; none if it was truncated."""
    try:
        found = json.loads(text)
    except ValueError:
        return []
    if isinstance(choice, NamedTool):
        return [Call(choice.function.name, text)]
    return [Call(each["name"], json.dumps(each["parameters"])) for each in found]


@dataclass(slots=True)
class CallReader:
    """Separates calls from text while an answer is generated."""

    max_calls: int | None = None
    calls: list[Call] = field(default_factory=list)
    _held: str = ""  # text that is or may become a call
    _inside: bool = False

    def push(self, text: str) -> tuple[str, list[Call]]:
        """New text that is not part of a call, and new complete calls."""
        self._held += text
        before, shown = len(self.calls), ""
        while True:
            piece, more = self._call() if self._inside else self._text()
            if piece.strip() or not self.calls:  # drop white space between calls
                shown += piece
            if not more:
                return shown, self.calls[before:]

    def finish(self) -> str:
        """The held text that is not a call, when the answer ends, perhaps inside a call."""
        rest = self._take(self._held, OPEN + self._held) if self._inside else self._held
        self._held, self._inside = "", False
        return rest if rest.strip() else ""

    def _text(self) -> tuple[str, bool]:
        """Text up to a call, and whether one starts."""
        text, mark, after = self._held.partition(OPEN)
        if mark:
            self._held, self._inside = after, True
            return text, True
        certain = len(text) - overlap(text, OPEN)
        self._held = text[certain:]
        return text[:certain], False

    def _call(self) -> tuple[str, bool]:
        """Parse a call if it is complete; the text of an invalid call."""
        body, mark, after = self._held.partition(CLOSE)
        if not mark:
            return "", False
        self._held, self._inside = after, False
        return self._take(body, OPEN + body + CLOSE), True

    def _take(self, body: str, otherwise: str) -> str:
        """Add the calls in `body`; `otherwise` if there are none."""
        calls = _parse_calls(body)
        self.calls += (
            calls if self.max_calls is None else calls[: max(0, self.max_calls - len(self.calls))]
        )
        return "" if calls else otherwise


def _parse_calls(body: str) -> list[Call]:
    """The call or list of calls between two marks; empty if it is not valid."""
    try:
        found = json.loads(body)
    except ValueError:
        return []
    calls = []
    for each in found if isinstance(found, list) else [found]:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            return []
        arguments: Any = next((each[key] for key in ARGUMENTS if key in each), {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append(Call(each["name"], text))
    return calls
