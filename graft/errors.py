"""What callers catch. Every message is one line that says what was found and what to do."""


class GraftError(Exception):
    """Anything Graft refuses; the command line prints it as one line and exits with 1."""


class InputError(GraftError):
    """A prompt, document or option that cannot be used as given."""


class CheckpointError(GraftError):
    """A model that cannot be found, fetched, read or converted."""


class UnsupportedModelError(GraftError):
    """An architecture whose trees this library cannot score exactly."""


class ContextLengthError(InputError):
    """A prompt that does not fit the model's context."""
