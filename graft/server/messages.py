"""Chats in the form that the model's chat template takes."""

from typing import Any

from graft.decode.engine import Engine
from graft.decode.text import EncodedPrompt
from graft.errors import InputError
from graft.server.schema import Message, Tool, plain_text
from graft.server.tools import call_for_template, explain

RESERVED = {"tools", "tokenize", "add_generation_prompt", "chat_template", "return_dict"}


def encode_chat(
    engine: Engine,
    messages: list[Message],
    tools: list[Tool],
    options: dict[str, Any] | None = None,
) -> EncodedPrompt:
    """The tokens of a chat, by the model's template."""
    prepared, options = _prepared(engine, messages, tools, options)
    return engine.encoder.chat(prepared, **options)


def chat_characters(
    engine: Engine,
    messages: list[Message],
    tools: list[Tool],
    options: dict[str, Any] | None = None,
) -> list[tuple[int, int, int] | None]:
    """For each token of that chat its message and its characters there; None for tokens that the
    client did not send."""
    prepared, options = _prepared(engine, messages, tools, options)
    added = len(prepared) - len(messages)  # a system message that describes the tools
    places = engine.encoder.chat_characters(prepared, **options)
    return [(at[0] - added, *at[1:]) if at and at[0] >= added else None for at in places]


def _prepared(
    engine: Engine, messages: list[Message], tools: list[Tool], options: dict[str, Any] | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The messages and options for the model's template."""
    if wrong := RESERVED & set(options or {}):
        raise InputError(f"chat_template_kwargs may not set {min(wrong)!r}")
    prepared = [_for_template(message) for message in messages]
    options = dict(options or {})
    template = getattr(engine.loaded.tokenizer, "chat_template", None)
    if "tools" not in str(template):
        prepared = explain(prepared, tools)
    elif tools:
        options["tools"] = [tool.model_dump(exclude_none=True) for tool in tools]
    return prepared, options


def _for_template(message: Message) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    fields: dict[str, Any] = {"role": role, "content": plain_text(message.content)}
    if message.name:
        fields["name"] = message.name
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [call_for_template(call) for call in message.tool_calls]
    return fields
