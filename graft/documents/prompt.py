"""The prompt of a question about documents."""

from collections.abc import Sequence

from graft.documents.read import Document


def document_messages(question: str, documents: Sequence[Document]) -> list[dict[str, str]]:
    """One user message: the documents, then the question.

    The documents come first, so that questions about the same documents share a prefix.
    """
    parts = [f"Document {document.name}:\n\n{document.text.strip()}" for document in documents]
    return [{"role": "user", "content": "\n\n".join([*parts, question])}]
