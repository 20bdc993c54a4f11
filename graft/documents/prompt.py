"""The prompt of a question about documents."""

from collections.abc import Sequence

from graft.documents.read import Document


def document_messages(question: str, documents: Sequence[Document]) -> list[dict[str, str]]:
    """One user message: the documents as they are, then the question.

    The documents come first so that the next question about them shares a prefix with this one.
    """
    parts = [f"Document {document.name}:\n\n{document.text.strip()}" for document in documents]
    return [{"role": "user", "content": "\n\n".join([*parts, question])}]
