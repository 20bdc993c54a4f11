"""Builds the engine's requests from the fields that clients send."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graft.decode.engine import Engine
from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.decode.text import EncodedPrompt
from graft.errors import ContextLengthError, InputError
from graft.sampling import SamplingParams
from graft.server.errors import ApiError
from graft.server.grammar import (
    ANY_OBJECT,
    Grammars,
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
)
from graft.server.messages import PreparedChat
from graft.server.method_numbers import method_numbers
from graft.server.passages import Passages
from graft.server.schema import (
    ChatRequest,
    ResponseFormat,
    Sampled,
    Speculative,
    StructuredOutputs,
    as_documents,
)
from graft.server.settings import ServerSettings
from graft.server.tenants import Corpora

TEMPERATURE = 1.0  # OpenAI's default, not the model's
SAMPLING_FIELDS = (
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "ignore_eos",
    "n",
)
MAX_CHARACTERS_PER_TOKEN = 32  # more than any language needs
MAX_LOGIT_BIAS = 100.0


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Builds requests for one server; ApiError or InputError for what it cannot serve."""

    engine: Engine
    grammars: Grammars
    corpora: Corpora
    settings: ServerSettings

    @property
    def model_name(self) -> str:
        """The served name of the model."""
        return self.settings.name or self.engine.model_name

    @property
    def methods(self) -> list[str]:
        """The values of `speculative.method`, without the default."""
        return [name for name in self.engine.presets if not set(name) & set("+:")]

    def check_model(self, name: str | None) -> None:
        """Raise for a model that is not served."""
        if name is not None and name != self.model_name:
            raise ApiError(
                f"the model {name!r} does not exist; this server serves {self.model_name!r}",
                404,
                param="model",
                code="model_not_found",
            )

    def check_size(self, text: str) -> None:
        """Raise for a text that cannot fit, before it is tokenized."""
        if len(text) > MAX_CHARACTERS_PER_TOKEN * self.engine.context_length:
            raise ContextLengthError(
                f"the prompt has {len(text)} characters, but the context length of "
                f"{self.model_name} is {self.engine.context_length} tokens"
            )

    def check_length(self, prompt: EncodedPrompt, limit: int | None) -> None:
        """Raise for a prompt and a number of answer tokens that do not fit the context together."""
        count, context = len(prompt.tokens), self.engine.context_length
        if limit is not None and count + limit > context > count:
            raise ContextLengthError(
                f"the prompt has {count} tokens and max_tokens is {limit}, but the context length "
                f"of {self.model_name} is {context}"
            )

    def check_choices(self, body: Sampled, prompts: int = 1) -> int:
        """The number of answers to all prompts."""
        answers, limit = body.n * prompts, self.settings.max_choices
        if answers > limit:
            raise ApiError(f"{answers} answers exceed the limit of {limit}", param="n")
        return answers

    def params(
        self, body: Sampled, *, max_tokens: int | None, logprobs: int | None
    ) -> SamplingParams:
        """The sampling parameters."""
        given = {
            name: getattr(body, name) for name in SAMPLING_FIELDS if getattr(body, name) is not None
        }
        if any(abs(bias) > MAX_LOGIT_BIAS for bias in (body.logit_bias or {}).values()):
            raise ApiError("logit_bias values must be between -100 and 100", param="logit_bias")
        vocabulary = self.engine.model.vocabulary
        stop_ids = tuple(body.stop_token_ids or ())
        if any(not 0 <= token < vocabulary for token in stop_ids):
            raise ApiError(f"stop_token_ids must be below {vocabulary}", param="stop_token_ids")
        stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        return SamplingParams(
            temperature=TEMPERATURE if body.temperature is None else body.temperature,
            top_k=0 if body.top_k in (None, -1) else body.top_k,
            stop=stop,
            stop_token_ids=stop_ids,
            max_tokens=max_tokens or self.engine.context_length,
            logprobs=logprobs,
            **given,
        )

    def with_documents(
        self, chat: PreparedChat, body: ChatRequest, params: SamplingParams, tenant: str
    ) -> PreparedChat:
        """The chat with the request's documents and those of its corpora, if there are any."""
        documents = as_documents(body.documents or [])
        self._check_characters([each.text for each in documents], "documents")
        documents += self.corpora.documents(tenant, body.corpora, chat.chat.query)
        if not documents:
            return chat
        return chat.with_documents(documents, params, self.settings.document_tokens)

    def passages(self, body: ChatRequest, tenant: str) -> Passages:
        """The request's documents and those of its corpora, for adaptive retrieval."""
        documents = as_documents(body.documents or [])
        self._check_characters([each.text for each in documents], "documents")
        corpora = self.corpora.named(tenant, body.corpora)
        if len(corpora) == 1 and not documents:
            return corpora[0].passages
        documents += [each for index in corpora for each in index.documents]
        if not documents:
            raise ApiError("retrieval needs documents or corpora; send some", param="retrieval")
        return Passages(documents)

    def request(
        self,
        prompt: EncodedPrompt,
        params: SamplingParams,
        body: Sampled,
        tenant: str,
        schema: dict[str, Any] | None = None,
    ) -> PreparedRequest:
        """The engine's request; `schema` constrains the answer to required tool calls."""
        grammar = json_grammar(schema) if schema else _grammar(body)
        if grammar and body.ignore_eos:
            raise InputError("ignore_eos cannot be combined with a structured output")
        speculative = body.speculative or Speculative()
        chosen = self.corpora.drafter(tenant, self._method(speculative))
        resources = self.corpora.tenants.drafters(tenant).resources
        texts, prediction = self._texts(body)
        request = Request(
            prompt,
            params,
            chosen.name,
            texts,
            prediction or None,
            cache_salt="\0".join([tenant, body.cache_salt or ""]).strip("\0"),
            **method_numbers(speculative, chosen.name, resources, self.engine.shift),
        )
        return PreparedRequest(
            request,
            constrain=self.grammars.constrain(grammar) if grammar else None,
            drafters=chosen,
        )

    def _method(self, chosen: Speculative) -> str:
        """The preset. Clients choose among the server's presets only: the name of a datastore is
        the path of a file."""
        if chosen.disabled:
            return "plain"
        default = self.engine.default_draft
        method = chosen.method or default
        if method not in (*self.methods, default):
            raise ApiError(
                f"unknown speculative method {method!r}; choose one of {', '.join(self.methods)}",
                param="speculative.method",
            )
        return method

    def _texts(self, body: Sampled) -> tuple[list[str], str]:
        texts, prediction = body.texts_to_copy()
        self._check_characters([*texts, prediction], "draft_texts")
        return texts, prediction

    def _check_characters(self, texts: list[str], param: str) -> None:
        limit = self.settings.max_document_characters
        if sum(map(len, texts)) > limit:
            raise ApiError(f"{param} may have {limit} characters together", 413, param=param)


def _grammar(body: Sampled) -> str | None:
    """The grammar of a structured output, if one is requested."""
    outputs = body.structured_outputs or StructuredOutputs()
    given: list[tuple[Callable[[Any], str], Any]] = [
        (json_grammar, outputs.json_),
        (json_grammar, ANY_OBJECT if outputs.json_object else None),
        (regex_grammar, outputs.regex),
        (choice_grammar, outputs.choice),
        (lark_grammar, outputs.grammar),
        (json_grammar, body.guided_json),
        (regex_grammar, body.guided_regex),
        (choice_grammar, body.guided_choice),
        (lark_grammar, body.guided_grammar),
    ]
    grammars = [make(value) for make, value in given if value is not None]
    grammars += _response_format(body.response_format) if body.response_format else []
    if len(grammars) > 1:
        raise InputError("request one structured output, not several")
    return grammars[0] if grammars else None


def _response_format(requested: ResponseFormat) -> list[str]:
    if requested.type == "text":
        return []
    if requested.type == "json_object":
        return [json_grammar(ANY_OBJECT)]
    if requested.type == "regex":
        if requested.pattern is None:
            raise ApiError("response_format needs a pattern", param="response_format.pattern")
        return [regex_grammar(requested.pattern)]
    if requested.json_schema is None:
        raise ApiError("response_format needs a json_schema", param="response_format.json_schema")
    return [json_grammar(requested.json_schema.schema_)]
