"""What a request to vLLM says about its drafts: documents, a prediction, a tenant.

`SamplingParams(extra_args={"graft": {"documents": [...], "prediction": ..., "tenant": "..."}})`;
each document, and the prediction, is a text or a list of token ids. They are drafted from and are
no part of the prompt. vLLM's server passes `vllm_xargs` on as extra_args, but takes no objects in
it: over HTTP the field is the object's JSON text, `{"graft": json.dumps({"documents": ...})}`.

    vllm serve MODEL ... --middleware graft.integrations.vllm_fields.Middleware

checks the field where vLLM still can refuse the request, takes an object too, and adds the
request's `cache_salt`, which vLLM keeps from its workers, to the tenant.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.errors import InputError
from graft.integrations.request_text import (
    CHARACTERS,
    MAX_TOKENS,
    Encode,
    encoder,
    in_vocabulary,
    is_text,
)

logger = logging.getLogger(__name__)

NAME = "graft"
KEYS = ("documents", "prediction", "tenant")
ROUTES = ("/completions", "/responses")

Given = str | list[int]


@dataclass(frozen=True, slots=True)
class Fields:
    """The field of a request; texts are not tokenized yet."""

    documents: tuple[Given, ...] = ()
    prediction: Given = ""
    tenant: str = ""

    def texts(self, encode: Encode | None, vocabulary: int) -> list[tuple[str, np.ndarray]]:
        """Source and token ids (int32) of each text; InputError for ids of no token."""
        named = [*(("document", each) for each in self.documents), ("prediction", self.prediction)]
        return [(source, _token_ids(each, encode, vocabulary)) for source, each in named if each]


def read_fields(value: object) -> Fields:
    """The field's content, an object or its JSON text; InputError for anything else."""
    if value is None:
        return Fields()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{NAME} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f'{NAME} must be an object such as {{"documents": ["text"]}}')
    if unknown := sorted(set(value) - set(KEYS), key=str):
        raise InputError(f"unknown field {NAME}.{unknown[0]}; fields: {', '.join(KEYS)}")
    documents, prediction = value.get("documents", ()), value.get("prediction", "")
    if not isinstance(documents, list | tuple) or not all(map(is_text, documents)):
        raise InputError(f"{NAME}.documents must be a list of texts or of lists of token ids")
    if not is_text(prediction):
        raise InputError(f"{NAME}.prediction must be a text or a list of token ids")
    tenant = value.get("tenant", "")
    if not isinstance(tenant, str):
        raise InputError(f"{NAME}.tenant must be a string")
    tokens = sum(map(_about_tokens, [*documents, prediction]))
    if tokens > MAX_TOKENS:
        raise InputError(f"{NAME} has about {tokens:,} tokens of text; send at most {MAX_TOKENS:,}")
    return Fields(tuple(documents), prediction, tenant)


def _about_tokens(text: Given) -> int:
    return len(text) // CHARACTERS if isinstance(text, str) else len(text)


def _token_ids(text: Given, encode: Encode | None, vocabulary: int) -> np.ndarray:
    if isinstance(text, str):
        if encode is None:
            raise InputError(f"{NAME} has a text, but vLLM has no tokenizer; send token ids")
        text = encode(text)
    if not in_vocabulary(text, vocabulary):
        raise InputError(f"{NAME} has token ids outside of 0 to {vocabulary - 1}")
    return np.array(text, dtype=np.int32)


def tokenizer_of(vllm_config: Any) -> Any:  # noqa: ANN401
    """The tokenizer of vLLM's model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(vllm_config.model_config.tokenizer)


class Reader:
    """Reads the fields of vLLM's requests in a worker."""

    def __init__(self, vocabulary: int, load_tokenizer: Callable[[], Any]) -> None:
        self._vocabulary, self._load_tokenizer = vocabulary, load_tokenizer
        self._encode: Encode | None = None

    def load(self) -> None:
        """Load the tokenizer, for documents that are texts."""
        try:
            self._encode = encoder(self._load_tokenizer())
        except (OSError, ValueError) as error:
            logger.warning("graft: no tokenizer, documents must be token ids: %s", error)

    def read(self, name: str, request: Any) -> tuple[list[tuple[str, np.ndarray]], str | None]:  # noqa: ANN401
        """Texts of a request, and its tenant; none of either with a field that is no good."""
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        try:
            fields = read_fields(extra.get(NAME))
            return fields.texts(self._encode, self._vocabulary), fields.tenant
        except InputError as error:
            logger.warning("request %s: %s; drafting from its prompt and answer", name, error)
            return [], None


class Middleware:
    """ASGI middleware for `vllm serve --middleware`: a bad field gets status 400."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[dict]], send: Callable
    ) -> None:
        """See ASGI."""
        if scope["type"] != "http" or not scope["path"].endswith(ROUTES):
            return await self._app(scope, receive, send)
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        body = b"".join(message.get("body", b"") for message in messages)
        try:
            changed = _checked(body)
        except InputError as error:
            return await _bad_request(send, f"vllm_xargs: {error}")
        if changed != body:
            messages = [{"type": "http.request", "body": changed, "more_body": False}]
            others = [pair for pair in scope.get("headers", ()) if pair[0] != b"content-length"]
            length = (b"content-length", str(len(changed)).encode())
            scope = {**scope, "headers": [*others, length]}

        async def replay() -> dict:
            return messages.pop(0) if messages else await receive()

        return await self._app(scope, replay, send)


def _checked(body: bytes) -> bytes:
    """The body with its field as vLLM takes it; as it was if it has none and no cache salt."""
    if b"vllm_xargs" not in body and b"cache_salt" not in body:
        return body
    try:
        content = json.loads(body)
    except ValueError:
        return body  # vLLM reports the error
    if not isinstance(content, dict):
        return body
    extra, salt = content.get("vllm_xargs") or {}, content.get("cache_salt")
    if not isinstance(extra, dict):
        return body
    if misplaced := next((key for key in KEYS[:2] if key in extra), None):
        raise InputError(f'{misplaced} is no field here; send {NAME}: {{"{misplaced}": ...}}')
    fields = read_fields(extra.get(NAME))
    if NAME not in extra and not isinstance(salt, str):
        return body
    # A client that may choose its tenant stays within the salt that a gateway chose for it.
    tenant = json.dumps([salt, fields.tenant]) if isinstance(salt, str) else fields.tenant
    given = {"documents": fields.documents, "prediction": fields.prediction, "tenant": tenant}
    content["vllm_xargs"] = {**extra, NAME: json.dumps({k: v for k, v in given.items() if v})}
    return json.dumps(content).encode()


async def _bad_request(send: Callable, message: str) -> None:
    error = {"message": message, "type": "BadRequestError", "param": "vllm_xargs", "code": 400}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})
