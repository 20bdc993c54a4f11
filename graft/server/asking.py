"""From a client's fields to the engine's request."""

from dataclasses import dataclass
from typing import Any

from graft.decode.engine import Engine
from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.decode.text import EncodedPrompt
from graft.errors import ContextLengthError, InputError
from graft.sampling import SamplingParams
from graft.server.corpora import Corpora
from graft.server.failures import Refusal
from graft.server.grammar import (
    ANY_OBJECT,
    Grammars,
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
)
from graft.server.messages import plain_text
from graft.server.schema import Sampled, Speculative, StructuredOutputs
from graft.server.settings import ServerSettings
from graft.server.tenants import Tenants

# OpenAI's defaults, not the model's own
TEMPERATURE = 1.0
PASSED_ON = (
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
CHARACTERS_PER_TOKEN = 32  # a prompt with more of them than this is too long in any language
BIAS = 100.0


@dataclass(frozen=True, slots=True)
class Asking:
    """Makes requests for one server."""

    engine: Engine
    grammars: Grammars
    tenants: Tenants
    corpora: Corpora
    settings: ServerSettings

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self.settings.name or self.engine.model_name

    @property
    def methods(self) -> list[str]:
        """What a client may choose as `speculative.method`, besides the default."""
        return [name for name in self.engine.presets if not set(name) & set("+:")]

    def check_model(self, name: str | None) -> None:
        """Refuse another model than the one that is here."""
        if name is not None and name != self.model_name:
            raise Refusal(
                f"the model {name!r} does not exist; this server has {self.model_name!r}",
                404,
                param="model",
                code="model_not_found",
            )

    def check_size(self, text: str) -> None:
        """Refuse a text that cannot fit before any work is done on it."""
        if len(text) > CHARACTERS_PER_TOKEN * self.engine.context_length:
            raise ContextLengthError(
                f"the prompt has {len(text)} characters, but {self.model_name} reads at most "
                f"{self.engine.context_length} tokens"
            )

    def check_choices(self, asked: Sampled, prompts: int = 1) -> int:
        """How many answers are wanted in all."""
        places = asked.n * prompts
        if places > self.settings.max_choices:
            raise Refusal(f"{places} answers are too many; ask for up to "
                          f"{self.settings.max_choices}", param="n")  # fmt: skip
        return places

    def params(
        self, asked: Sampled, *, max_tokens: int | None, logprobs: int | None
    ) -> SamplingParams:
        """How to draw."""
        given = {
            name: getattr(asked, name) for name in PASSED_ON if getattr(asked, name) is not None
        }
        if any(abs(bias) > BIAS for bias in (asked.logit_bias or {}).values()):
            raise Refusal("logit_bias values must be between -100 and 100", param="logit_bias")
        vocabulary = self.engine.model.vocabulary
        ends = tuple(asked.stop_token_ids or ())
        if any(not 0 <= token < vocabulary for token in ends):
            raise Refusal(f"stop_token_ids must be below {vocabulary}", param="stop_token_ids")
        stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
        return SamplingParams(
            temperature=TEMPERATURE if asked.temperature is None else asked.temperature,
            top_k=0 if asked.top_k in (None, -1) else asked.top_k,
            stop=stop,
            stop_token_ids=ends,
            max_tokens=max_tokens or self.engine.context_length,
            logprobs=logprobs,
            **given,
        )

    def request(
        self,
        prompt: EncodedPrompt,
        params: SamplingParams,
        asked: Sampled,
        tenant: str,
        schema: dict[str, Any] | None = None,
    ) -> PreparedRequest:
        """All of it; `schema` is what required calls look like. A given `max_tokens` has to fit."""
        limit = getattr(asked, "max_completion_tokens", None) or asked.max_tokens
        count, most = len(prompt.tokens), self.engine.context_length
        if limit is not None and count + limit > most and count < most:
            raise ContextLengthError(
                f"the prompt has {count} tokens and max_tokens is {limit}, but {self.model_name} "
                f"reads and writes at most {most} together"
            )
        grammar = json_grammar(schema) if schema else _grammar(asked)
        if grammar and asked.ignore_eos:
            raise InputError("ignore_eos cannot be used with a structured output")
        draft, most_drafted = self._draft(asked.speculative, tenant)
        documents, prediction = self._texts(asked)
        request = Request(
            prompt,
            params,
            draft,
            documents,
            prediction or None,
            draft_tokens=most_drafted,
            cache_salt="\0".join([tenant, asked.cache_salt or ""]).strip("\0"),
        )
        return PreparedRequest(
            request,
            constrain=self.grammars.constrain(grammar) if grammar else None,
            drafters=self.tenants.drafters(tenant),
        )

    def _draft(self, asked: Speculative | None, tenant: str) -> tuple[str, int | None]:
        """The preset and the most guesses in a step. What the operator named is the only way to
        files: a client chooses among names."""
        default = self.engine.default_draft
        if asked and (not asked.enabled or asked.num_tokens == 0):
            return "plain", None
        method = asked.method if asked and asked.method else default
        known = self.methods
        if method not in (*known, default):
            raise Refusal(f"unknown speculative method {method!r}; choose one of "
                          f"{', '.join(known)}", param="speculative.method")  # fmt: skip
        if method != "plain":
            method = "+".join([method, *self.corpora.drafts(tenant)])
        return method, asked.num_tokens if asked else None

    def _texts(self, asked: Sampled) -> tuple[list[str], str]:
        texts = [each if isinstance(each, str) else each.text for each in asked.documents or []]
        prediction = plain_text(asked.prediction.content) if asked.prediction else ""
        most = self.settings.max_document_characters
        if sum(map(len, texts)) + len(prediction) > most:
            raise Refusal(
                f"documents and prediction may have {most} characters together", 413,
                param="documents",
            )  # fmt: skip
        return texts, prediction


def _grammar(asked: Sampled) -> str | None:
    """What the answer must look like; at most one wish of several fields."""
    args = [*_formats(asked), *_structures(asked.structured_outputs), *_guides(asked)]
    if len(args) > 1:
        raise InputError("ask for one structured output, not for several")
    return args[0] if args else None


def _formats(asked: Sampled) -> list[str]:
    wanted = asked.response_format
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        return [json_grammar(ANY_OBJECT)]
    if wanted.type == "regex":
        if wanted.pattern is None:
            raise Refusal("response_format needs a pattern", param="response_format.pattern")
        return [regex_grammar(wanted.pattern)]
    if wanted.json_schema is None:
        raise Refusal("response_format needs a json_schema", param="response_format.json_schema")
    return [json_grammar(wanted.json_schema.schema_)]


def _structures(wanted: StructuredOutputs | None) -> list[str]:
    if wanted is None:
        return []
    return [
        *([json_grammar(wanted.json_)] if wanted.json_ is not None else []),
        *([json_grammar(ANY_OBJECT)] if wanted.json_object else []),
        *_common(wanted.regex, wanted.choice, wanted.grammar),
    ]


def _guides(asked: Sampled) -> list[str]:
    return [
        *([json_grammar(asked.guided_json)] if asked.guided_json is not None else []),
        *_common(asked.guided_regex, asked.guided_choice, asked.guided_grammar),
    ]


def _common(regex: str | None, choice: list[str] | None, grammar: str | None) -> list[str]:
    return [
        *([regex_grammar(regex)] if regex is not None else []),
        *([choice_grammar(choice)] if choice is not None else []),
        *([lark_grammar(grammar)] if grammar is not None else []),
    ]
