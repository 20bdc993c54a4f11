"""KV cache reuse of a session's prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

from graft.rag.document_cache import DocumentCache, Prepared
from graft.rag.parts import Part


@dataclass(frozen=True, slots=True)
class DocumentReuse:
    """Reuse through a document cache, which sessions may share, and the engine's prefix cache."""

    cache: DocumentCache

    @property
    def name(self) -> str:
        """The name of the mode."""
        return self.cache.reuse.name

    @property
    def approximate(self) -> bool:
        """Whether answers may differ from those of `off`."""
        return self.cache.reuse.approximate

    @property
    def keeps_head(self) -> bool:
        """Whether the demonstrations are cached, so that they are prefilled before a question."""
        return self.cache.reuse.head or self.cache.reuse.mode != "off"

    def prepare(self, parts: Sequence[Part], question: str) -> Prepared:
        """The prompt of these parts, which belong to `question`, with its cached rows."""
        return self.cache.prepare(parts, question)

    def end(self, question: str) -> None:
        """Free the rows that only this question may use, and write the others to the folder."""
        self.cache.forget(question)
        self.cache.flush()
