"""Graft: lossless speculative decoding of answers from documents.

engine = graft.load("smollm2-135m")
for event in engine.stream("Once upon a time"):
    print(event.text, end="")
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graft.assemble.loading import load as load
    from graft.decode.document_prompt import DocumentPrompt as DocumentPrompt
    from graft.decode.document_prompt import Excerpt as Excerpt
    from graft.decode.document_prompt import document_prompt as document_prompt
    from graft.decode.engine import Engine as Engine
    from graft.decode.output import Result as Result
    from graft.decode.output import TokenEvent as TokenEvent
    from graft.decode.request import Request as Request
    from graft.decode.stats import Stats as Stats
    from graft.decode.stream import AsyncStream as AsyncStream
    from graft.decode.stream import Stream as Stream
    from graft.decode.text import Message as Message
    from graft.decode.text import Prompt as Prompt
    from graft.documents.prompt import document_messages as document_messages
    from graft.documents.read import Document as Document
    from graft.documents.read import read_document as read_document
    from graft.documents.read import read_documents as read_documents
    from graft.draft.copies.texts import Origin as Origin
    from graft.draft.options import Casd as Casd
    from graft.draft.options import Rasd as Rasd
    from graft.errors import CheckpointError as CheckpointError
    from graft.errors import ContextLengthError as ContextLengthError
    from graft.errors import GraftError as GraftError
    from graft.errors import InputError as InputError
    from graft.errors import MissingDependencyError as MissingDependencyError
    from graft.errors import UnsupportedModelError as UnsupportedModelError
    from graft.integrations.hf.public import generate as generate
    from graft.match.pool import PoolOptions as PoolOptions
    from graft.sampling_params import SamplingParams as SamplingParams
    from graft.verify.rapid import Shift as Shift
    from graft.verify.verdict import Promise as Promise

# The public names by module. They are imported on first use, because torch takes seconds.
_PUBLIC = {
    "graft.assemble.loading": ("load",),
    "graft.decode.document_prompt": ("DocumentPrompt", "Excerpt", "document_prompt"),
    "graft.decode.engine": ("Engine",),
    "graft.decode.output": ("Result", "TokenEvent"),
    "graft.decode.request": ("Request",),
    "graft.decode.stats": ("Stats",),
    "graft.decode.stream": ("AsyncStream", "Stream"),
    "graft.decode.text": ("Message", "Prompt"),
    "graft.documents.prompt": ("document_messages",),
    "graft.documents.read": ("Document", "read_document", "read_documents"),
    "graft.draft.copies.texts": ("Origin",),
    "graft.draft.options": ("Casd", "Rasd"),
    "graft.errors": (
        "CheckpointError",
        "ContextLengthError",
        "GraftError",
        "InputError",
        "MissingDependencyError",
        "UnsupportedModelError",
    ),
    "graft.integrations.hf.public": ("generate",),
    "graft.match.pool": ("PoolOptions",),
    "graft.sampling_params": ("SamplingParams",),
    "graft.verify.rapid": ("Shift",),
    "graft.verify.verdict": ("Promise",),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    import importlib

    module = _MODULE_OF.get(name)
    try:
        if module:
            return getattr(importlib.import_module(module), name)
        return importlib.import_module(f"graft.{name}")
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == f"graft.{name}":
            raise AttributeError(f"module 'graft' has no attribute {name!r}") from None
        if missing.partition(".")[0] == "graft":
            raise
        from graft.errors import missing_dependency

        raise missing_dependency(error) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
