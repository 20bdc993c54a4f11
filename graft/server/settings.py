"""The settings of a server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.documents import Document

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and names; the options of `graft serve` have the same defaults, except hosts."""

    options: dict[str, Any] | None = None  # announced to `graft run`; None: the server is not
    name: str | None = None  # served model name; None: the name it was loaded by
    api_keys: tuple[str, ...] = ()  # none: no authentication
    hosts: tuple[str, ...] = ()  # accepted Host headers; none: any
    max_waiting: int = 64  # queued sequences; more get status 429
    timeout: float = 600.0  # seconds per request, queue time included
    grace: float = 20.0  # seconds for running requests at shutdown
    max_body: int = 16 * MEGABYTE
    body_timeout: float = 60.0  # seconds until the body must be complete
    max_choices: int = 32  # n times the prompts of a request
    max_document_characters: int = 1_000_000  # of a request's texts together
    corpus: tuple[Document, ...] = ()  # of every key; answers a chat that names no other
    document_tokens: int | None = None  # of longer documents, passages of so many tokens are used
    corpora_folder: Path | None = None  # keeps uploaded corpora; None: they are lost at a restart
    max_corpora: int = 8  # of one key
    max_corpus_tokens: int = 4_000_000  # of all corpora of one key
