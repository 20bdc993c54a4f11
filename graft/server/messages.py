"""Chats in the form that the model's chat template takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from graft.decode.document_prompt import Chat, Excerpt, fit_documents
from graft.decode.engine import Engine
from graft.decode.text import EncodedPrompt
from graft.documents import Document
from graft.documents.prompt import first_user_message
from graft.errors import InputError
from graft.retrieval.citations import cite
from graft.sampling import SamplingParams
from graft.server.schema import Message, Tool, plain_text
from graft.server.tools import call_for_template, explain

URL_CITATION = "url_citation"  # OpenAI's type of citation in chats and responses
RESERVED = {"tools", "tokenize", "add_generation_prompt", "chat_template", "return_dict"}


@dataclass(frozen=True, slots=True)
class Place:
    """A token in the client's request; without characters if it sent token ids."""

    kind: str
    index: int
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat for the model's template, the documents in it and which passages of them."""

    chat: Chat
    added: int  # messages before the client's: one that describes the tools
    documents: Sequence[Document] = ()
    passages: tuple[Excerpt, ...] = ()
    shift: int = 0  # characters before the client's text in the message with the documents
    selection: dict[str, Any] | None = None  # of the documents

    def with_documents(
        self, documents: Sequence[Document], params: SamplingParams, document_tokens: int | None
    ) -> "PreparedChat":
        """With documents before the first question; the best passages if they are too long."""
        prompt = fit_documents(self.chat, documents, params, document_tokens=document_tokens)
        holder = first_user_message(prompt.messages)
        lengths = [len(each[holder]["content"]) for each in (prompt.messages, self.chat.messages)]
        return PreparedChat(
            replace(self.chat, messages=prompt.messages),
            self.added,
            documents,
            prompt.passages,
            lengths[0] - lengths[1],
            prompt.as_dict(),
        )

    def encode(self) -> EncodedPrompt:
        """The tokens by the model's template."""
        return self.chat.engine.encoder.chat(self.chat.messages, **self.chat.options)

    def places(self) -> list[Place | None]:
        """For each token its place in a message or document; None for tokens that the client did
        not send."""
        found = self.chat.engine.encoder.chat_characters(self.chat.messages, **self.chat.options)
        return [self._place(*at) if at else None for at in found]

    def _place(self, message: int, start: int, end: int) -> Place | None:
        if message < self.added:
            return None
        if self.passages and message == first_user_message(self.chat.messages):
            if start < self.shift:
                return self._in_document(start, end)
            start, end = start - self.shift, end - self.shift
        return Place("message", message - self.added, start, end)

    def _in_document(self, start: int, end: int) -> Place | None:
        for each in self.passages:
            if each.at <= start and end <= each.at + each.end - each.start:
                shift = each.start - each.at
                return Place("document", each.index, start + shift, end + shift)
        return None

    def citations(self, answer: str) -> list[dict[str, Any]]:
        """See `citations`."""
        return citations(answer, self.documents, self.passages)


def citations(
    answer: str, documents: Sequence[Document], passages: Sequence[Excerpt]
) -> list[dict[str, Any]]:
    """OpenAI's citations of an answer: its spans that repeat a passage in the prompt."""
    texts = [documents[each.index].text[each.start : each.end] for each in passages]
    found = []
    for each in cite(answer, texts):
        passage = passages[each.text]
        start, end = passage.start + each.first, passage.start + each.last
        pages = documents[passage.index].pages_of(start, end)
        found.append({
            "start_index": each.start,
            "end_index": each.end,
            "title": passage.document,
            "url": f"document:{passage.index}#char={start},{end}",  # as RFC 5147
            **({"pages": pages} if pages else {}),
        })  # fmt: skip
    return found


def prepare_chat(
    engine: Engine,
    messages: list[Message],
    tools: list[Tool],
    options: dict[str, Any] | None = None,
) -> PreparedChat:
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
    return PreparedChat(Chat(engine, prepared, options), len(prepared) - len(messages))


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
