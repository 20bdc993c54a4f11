"""Request bodies: OpenAI's fields, common ones of vLLM, and Graft's own.

An unknown field is an error, unless it is null.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from graft.documents import Document
from graft.errors import InputError
from graft.rag.session import MAX_ROUNDS, PASSAGES
from graft.server.errors import ApiError

TEXTS = ("text", "input_text", "output_text")  # types of parts
MAX_STOPS = 64
MAX_ITEMS = 10_000  # of lists that are processed item by item
MAX_PAGES = 100_000
MAX_CORPORA = 64  # named in a request
MAX_TOKENS = 1 << 20  # of a prompt; the context length is checked later
Tokens = Annotated[list[int], Field(max_length=MAX_TOKENS)]
# Numbers of methods that a request cannot set, and what it may send instead
SERVER_FLAGS = {
    "gamma": "; send num_tokens, the maximum of draft tokens per step",
    "verifier": "; send eta, tail or margin",
    "retriever": "; send retrieved, the tokens that it selects",
}


class Strict(BaseModel):
    """Forbids unknown fields, infinity and NaN; null means not set."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:  # noqa: ANN401 (any JSON)
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


class Body(Strict):
    """A request body. JSON can encode a lone surrogate, which is not valid Unicode."""

    @model_validator(mode="before")
    @classmethod
    def _is_unicode(cls, fields: Any) -> Any:  # noqa: ANN401 (any JSON)
        try:  # json is fast enough for the event loop
            json.dumps(fields, ensure_ascii=False, default=lambda _: None).encode()
        except UnicodeEncodeError:
            raise ValueError("the request contains text that is not valid Unicode") from None
        return fields


class StreamOptions(Strict):
    """OpenAI's `stream_options`."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False
    continuous_usage_stats: Literal[False] = False


class Speculative(Strict):
    """The drafter: a preset of the server, the maximum of draft tokens per step, or none; and the
    request's own numbers of the method (`server/method_numbers.py`).

    With `trace` every choice and chunk has a `trace` (`server/trace.py`), and the metrics have the
    drafted and accepted tokens of every step.
    """

    enabled: bool = True
    method: str | None = None
    num_tokens: int | None = Field(default=None, ge=0, le=1024)
    trace: bool = False
    confidence: float | None = Field(default=None, ge=0, le=1)
    retrieved: int | str | None = None
    eta: float | None = Field(default=None, ge=0, le=1000)
    tail: Literal["drafter", "target"] | None = None
    margin: float | None = Field(default=None, ge=0, le=1000)
    rasd_top_k: int | None = Field(default=None, ge=1, le=10)
    rasd_branches: int | None = Field(default=None, ge=1, le=16)
    rasd_length: int | None = Field(default=None, ge=1, le=32)
    rasd_requery: bool | None = None
    casd_matches: int | None = Field(default=None, ge=1, le=16)
    casd_length: int | None = Field(default=None, ge=1, le=32)

    @property
    def disabled(self) -> bool:
        """Whether nothing is drafted."""
        return not self.enabled or self.num_tokens == 0

    @model_validator(mode="before")
    @classmethod
    def _names_flags(cls, fields: Any) -> Any:  # noqa: ANN401 (any JSON)
        for name, instead in SERVER_FLAGS.items():
            if isinstance(fields, dict) and fields.get(name) is not None:
                raise ApiError(
                    f"{name} is the same for all requests of a server (--{name}){instead}",
                    param=f"speculative.{name}",
                )
        return fields


class Prediction(Strict):
    """OpenAI's predicted output: text that the answer may repeat."""

    type: Literal["content"] = "content"
    content: "str | list[Part]"


class Part(BaseModel):
    """A part of a message; only text is supported."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


def plain_text(content: str | list[Part] | None) -> str:
    """The text of a message; InputError for parts that are not text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        if part.type not in TEXTS or part.text is None:
            raise InputError(f"content of type {part.type!r} is not supported; send text")
        texts.append(part.text)
    return "\n".join(texts)


class TitledText(Strict):
    """A text; the title names it in prompts and citations, which also have the page if `pages` has
    the first character of every page."""

    text: str
    title: str | None = Field(default=None, max_length=512)
    pages: list[int] | None = Field(default=None, max_length=MAX_PAGES)


Texts = Annotated[list[str | TitledText], Field(max_length=MAX_ITEMS)]


def as_documents(texts: Sequence[str | TitledText]) -> list[Document]:
    """Documents to answer from; those without a title are numbered. ApiError for empty ones."""
    given = [TitledText(text=each) if isinstance(each, str) else each for each in texts]
    for number, each in enumerate(given):
        if not each.text.strip():
            raise ApiError(f"documents.{number} is empty", param=f"documents.{number}")
        if sorted({0, *(each.pages or [])}) != (each.pages or [0]):
            raise ApiError("pages must rise from 0", param=f"documents.{number}.pages")
    return [
        Document(each.title or str(number), each.text, tuple(each.pages or ()))
        for number, each in enumerate(given, 1)
    ]


class Retrieval(Strict):
    """Adaptive retrieval: the policy of `graft ask`, its threshold or the model whose published
    thresholds it has, passages per round, maximum searches, and the family of demonstrations."""

    policy: Literal["fl", "fs", "flare", "dragin"] = "dragin"
    threshold: float | None = None
    thresholds: Literal["7b", "13b", "vicuna-13b"] = "7b"
    passages: int = Field(default=PASSAGES, ge=1, le=32)
    rounds: int = Field(default=MAX_ROUNDS, ge=0, le=64)
    family: Literal["general", "2wiki", "hotpotqa", "musique", "strategyqa"] = "general"


class StructuredOutputs(Strict):
    """vLLM's `structured_outputs`: exactly one of these."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1)
    grammar: str | None = None
    json_object: bool | None = None


class JsonSchema(Strict):
    """OpenAI's wrapper of a schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=lambda: {"type": "object"}, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """OpenAI's `response_format`, and `regex`."""

    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: JsonSchema | None = None
    pattern: str | None = None


class TextRequest(Body):
    """The fields of all text requests."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool = False
    stream: bool = False
    documents: Texts | None = None
    corpora: list[str] | None = Field(default=None, max_length=MAX_CORPORA)
    draft_texts: Texts | None = None
    prediction: Prediction | None = None
    speculative: Speculative | None = None
    cache_salt: str | None = Field(default=None, max_length=256)
    user: str | None = None

    @property
    def traced(self) -> bool:
        """Whether the client requests a trace."""
        return bool(self.speculative and self.speculative.trace)

    def texts_to_copy(self) -> tuple[list[str], str]:
        """The draft texts and the prediction."""
        texts = [each if isinstance(each, str) else each.text for each in self.draft_texts or []]
        return texts, plain_text(self.prediction.content) if self.prediction else ""


class Ignored(Strict):
    """OpenAI's fields that never change an answer: nothing is stored, and there is one tier."""

    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class Sampled(TextRequest):
    """The further fields of chats and completions."""

    logit_bias: dict[int, float] | None = None
    stop_token_ids: list[int] | None = Field(default=None, max_length=MAX_STOPS)
    n: int = Field(1, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = Field(default=None, min_length=1)
    guided_grammar: str | None = None


class FunctionCall(Strict):
    """A function call of the assistant; `arguments` is JSON."""

    name: str
    arguments: str = "{}"


class ToolCall(Strict):
    """A tool call in a message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Strict):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None


class Function(Strict):
    """A function that the model may call."""

    name: str = Field(max_length=64)
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None


class Tool(Strict):
    """OpenAI's wrapper of a function."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """The name of a function."""

    name: str


class NamedTool(Strict):
    """The tool that must be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


class ChatRequest(Sampled, Ignored):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_ITEMS)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    retrieval: Retrieval | None = None
    modalities: list[Literal["text"]] | None = None


class CompletionRequest(Sampled):
    """`POST /v1/completions`."""

    prompt: (
        str
        | Tokens
        | Annotated[list[str], Field(max_length=MAX_ITEMS)]
        | Annotated[list[Tokens], Field(max_length=MAX_ITEMS)]
    )
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool = False
    best_of: int | None = Field(default=None, ge=1)


class ResponseItem(Strict):
    """A message of `/v1/responses`, sent by the client or returned by the server."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class TextFormat(JsonSchema):
    """The output format of a response."""

    type: Literal["text", "json_object", "json_schema"] = "text"


class TextOptions(Strict):
    """`text` of a response."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesRequest(TextRequest, Ignored):
    """`POST /v1/responses`, text in and text out; nothing is stored."""

    input: str | list[ResponseItem] = Field(min_length=1)
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    text: TextOptions | None = None
    truncation: Literal["disabled"] | None = None
    tools: list[Any] = Field(default_factory=list, max_length=0)
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None


class TokenizeRequest(Body):
    """`POST /tokenize`: a text, or a chat by the model's template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    tools: list[Tool] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Tokens


class AddCorpus(Body):
    """`POST /add_external_corpus`: texts that every request of this key may draft from."""

    corpus_id: str | None = Field(default=None, min_length=1, max_length=128)
    documents: list[str] = Field(min_length=1, max_length=MAX_ITEMS)


class NewCorpus(Body):
    """`POST /v1/corpora`: documents that requests of this key may name and draft from."""

    id: str | None = Field(default=None, min_length=1, max_length=128)
    documents: Annotated[Texts, Field(min_length=1)]


class RemoveCorpus(Body):
    """`POST /remove_external_corpus`."""

    corpus_id: str
