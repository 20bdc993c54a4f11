"""What a server is told when it starts."""

from dataclasses import dataclass

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and names; the command's options have the same defaults, but for hosts."""

    name: str | None = None  # the model's in answers; None: as it was loaded
    api_keys: tuple[str, ...] = ()  # none: everybody is let in
    hosts: tuple[str, ...] = ()  # names clients may call the server by; none: any
    max_waiting: int = 64  # sequences that may wait for a place; more are told to come back
    timeout: float = 600.0  # seconds a request may take, the wait included
    grace: float = 20.0  # seconds that answers under way have when the server is told to stop
    max_body: int = 16 * MEGABYTE
    body_timeout: float = 60.0  # seconds in which a request's body must have come
    max_choices: int = 32  # n, times the prompts of a request
    max_document_characters: int = 1_000_000  # of a request's documents and prediction together
    max_corpora: int = 8  # of one key
    max_corpus_tokens: int = 4_000_000  # of all corpora of one key
