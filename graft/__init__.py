"""Graft: language models that answer from documents several times faster, word for word the same.

engine = graft.load("smollm2-135m")
for event in engine.stream("Once upon a time"):
    print(event.text, end="")
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graft.assemble import load as load
    from graft.decode.document_prompt import DocumentPrompt as DocumentPrompt
    from graft.decode.document_prompt import document_prompt as document_prompt
    from graft.decode.engine import Engine as Engine
    from graft.decode.output import Result as Result
    from graft.decode.output import TokenEvent as TokenEvent
    from graft.decode.request import Request as Request
    from graft.decode.stream import AsyncStream as AsyncStream
    from graft.decode.stream import Stream as Stream
    from graft.documents.prompt import document_messages as document_messages
    from graft.documents.read import read_documents as read_documents
    from graft.errors import GraftError as GraftError
    from graft.integrations.hf.public import generate as generate
    from graft.sampling_params import SamplingParams as SamplingParams
    from graft.verify.rapid import Shift as Shift

# Where the public names live; they are imported when first used, because torch takes seconds.
_HOMES = {
    "load": "graft.assemble",
    "generate": "graft.integrations.hf.public",
    "Engine": "graft.decode.engine",
    "Request": "graft.decode.request",
    "Stream": "graft.decode.stream",
    "AsyncStream": "graft.decode.stream",
    "Result": "graft.decode.sequence",
    "TokenEvent": "graft.decode.sequence",
    "SamplingParams": "graft.sampling_params",
    "Shift": "graft.verify.rapid",
    "GraftError": "graft.errors",
    "document_messages": "graft.documents.prompt",
    "document_prompt": "graft.decode.document_prompt",
    "DocumentPrompt": "graft.decode.document_prompt",
    "read_documents": "graft.documents.read",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    try:
        return importlib.import_module(f"graft.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module 'graft' has no attribute {name!r}") from error
