"""Hooks in SGLang's front end, where requests are tokenized and can be refused.

SGLang's front end offers external corpora to an algorithm named NGRAM alone. With these hooks it
passes them to Graft's worker too, and turns the texts of a request into token ids
(`sglang_fields.py`). They do nothing for other algorithms.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from graft.errors import InputError
from graft.integrations.request_text import encoder
from graft.integrations.sglang_corpora import SEPARATOR
from graft.integrations.sglang_fields import NO_TEXTS, Reader

NAME = "GRAFT"
MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"


def add_hooks() -> None:
    """Register the hooks; SGLang applies them once all plug-ins are loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{MANAGER}._create_tokenized_object", read_fields, HookType.BEFORE)
    for hook in (add_external_corpus, remove_external_corpus, list_external_corpora):
        HookRegistry.register(f"{MANAGER}.{hook.__name__}", hook, HookType.AROUND)


def drafts_with_graft(manager: Any) -> bool:  # noqa: ANN401
    """Whether this front end's server was started with Graft's algorithm."""
    return str(manager.server_args.speculative_algorithm).upper() == NAME


def read_fields(manager: Any, request: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
    """Replace the texts in a request's custom_params by token ids. SGLang answers a ValueError with
    status 400."""
    sampling = getattr(request, "sampling_params", None) or {}
    custom = sampling.get("custom_params")
    if not custom or not drafts_with_graft(manager):
        return
    reader = Reader(encoder(manager.tokenizer), manager.model_config.vocab_size)
    try:
        texts = reader.read(custom)
    except InputError as error:
        raise ValueError(str(error)) from None
    if texts is not NO_TEXTS:  # requests of a batch may share these dictionaries
        request.sampling_params = {**sampling, "custom_params": {**custom, **texts.fields()}}


async def add_external_corpus(
    original: Callable[..., Awaitable],
    manager: Any,  # noqa: ANN401
    request: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Tokenize a corpus and send it to the workers."""
    if not drafts_with_graft(manager):
        return await original(manager, request)
    from sglang.srt.managers.io_struct import AddExternalCorpusReqOutput

    try:
        request.token_chunks = _chunks(manager, request)
    except (InputError, ValueError, OSError) as error:
        return AddExternalCorpusReqOutput(success=False, message=str(error))
    request.corpus_id = request.corpus_id or secrets.token_hex(16)
    request.file_path = request.documents = None
    results = await _sent(manager, manager.add_external_corpus_communicator, request)
    done, message = _merged(results)
    if not done:
        return AddExternalCorpusReqOutput(success=False, message=message)
    return AddExternalCorpusReqOutput(
        success=True,
        corpus_id=request.corpus_id,
        message=message,
        loaded_token_count=results[0].loaded_token_count,
    )


async def remove_external_corpus(
    original: Callable[..., Awaitable],
    manager: Any,  # noqa: ANN401
    corpus_id: str,
) -> Any:  # noqa: ANN401
    """Remove a corpus from the workers."""
    if not drafts_with_graft(manager):
        return await original(manager, corpus_id)
    from sglang.srt.managers.io_struct import (
        RemoveExternalCorpusReqInput,
        RemoveExternalCorpusReqOutput,
    )

    request = RemoveExternalCorpusReqInput(corpus_id=corpus_id)
    results = await _sent(manager, manager.remove_external_corpus_communicator, request)
    done, message = _merged(results)
    return RemoveExternalCorpusReqOutput(success=done, message=message)


async def list_external_corpora(original: Callable[..., Awaitable], manager: Any) -> Any:  # noqa: ANN401
    """The corpora of the workers with their numbers of tokens."""
    if not drafts_with_graft(manager):
        return await original(manager)
    from sglang.srt.managers.io_struct import (
        ListExternalCorporaReqInput,
        ListExternalCorporaReqOutput,
    )

    request = ListExternalCorporaReqInput()
    results = await _sent(manager, manager.list_external_corpora_communicator, request)
    done, message = _merged(results)
    counts = results[0].corpus_token_counts if done else {}
    return ListExternalCorporaReqOutput(success=done, message=message, corpus_token_counts=counts)


def _chunks(manager: Any, request: Any) -> list[list[int]]:  # noqa: ANN401
    """The tokens of a corpus, a chunk for each document; the worker limits their number."""
    encode = encoder(manager.tokenizer)
    if encode is None:
        raise InputError("this server has no tokenizer, which an external corpus needs")
    if request.file_path is not None:
        from sglang.srt.speculative.cpp_ngram.external_corpus import iter_external_corpus_chunks

        limit = manager.server_args.speculative_ngram_external_corpus_max_tokens
        return list(iter_external_corpus_chunks(request.file_path, manager.tokenizer, limit))
    documents = request.documents
    if not isinstance(documents, list) or not all(isinstance(each, str) for each in documents):
        raise InputError("an external corpus needs file_path, or documents as a list of texts")
    return [[SEPARATOR, *encode(each)] for each in documents]


async def _sent(manager: Any, send: Callable[..., Awaitable], request: Any) -> Any:  # noqa: ANN401
    manager.auto_create_handle_loop()
    return await send(request)


def _merged(results: list[Any]) -> tuple[bool, str]:
    """Whether all workers did it, and their messages: one if all say the same."""
    messages = dict.fromkeys(each.message for each in results)
    return all(each.success for each in results), " | ".join(messages)
