"""Errors that callers catch. Every message is one line: what was found and what to do."""


class GraftError(Exception):
    """Base class of all errors that Graft raises on purpose."""


class InputError(GraftError):
    """A prompt, document or option that cannot be used as given."""


class ContextLengthError(InputError):
    """A prompt that does not fit the model's context."""


class CheckpointError(GraftError):
    """A model that cannot be found, downloaded, read or converted."""


class UnsupportedModelError(GraftError):
    """An architecture whose draft trees Graft cannot score exactly."""


class MissingDependencyError(GraftError, ImportError):
    """A package that is not installed; the message has the pip command."""


# The extra of this package that installs a module; modules not named here are installed by name.
_EXTRAS = {
    "fastapi": "server",
    "llguidance": "server",
    "prometheus_client": "server",
    "uvicorn": "server",
    "yaml": "server",
    "pymilvus": "milvus",
    "sentence_transformers": "retrieval",
    "wordllama": "retrieval",
    "accelerate": "train",
    "torchao": "int8",
    "pyarrow": "parquet",
    "kreuzberg": "formats",
}


def missing_dependency(error: ModuleNotFoundError) -> MissingDependencyError:
    """The error to raise for a module that cannot be imported."""
    module = (error.name or "").partition(".")[0]
    package = f"'graftlm[{_EXTRAS[module]}]'" if module in _EXTRAS else module
    text = f"{module} is not installed; type: pip install {package}"
    return MissingDependencyError(text, name=error.name)
