"""The prompt of a question about documents."""

from collections.abc import Sequence
from typing import Any

from graft.documents.read import Document
from graft.errors import InputError

# Longer documents are answered from passages in an automatic context. Of 100 questions to 6,000
# tokens of SQuAD's passages, 100 had their answer in the best 2,048 tokens, 99 in 1,024 and in 512
# (benchmarks/rag/context.py).
AUTO_TOKENS = 2048


def document_messages(
    question: str | Sequence[dict[str, Any]], documents: Sequence[Document]
) -> list[dict[str, Any]]:
    """One user message: the documents, then the question. In a chat they begin its first user
    message.

    The documents come first, so that questions about the same documents share a prefix.
    """
    chat = [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
    if documents:
        first = first_user_message(chat)
        parts = [heading(document) + document.text.strip() for document in documents]
        chat[first] = {**chat[first], "content": "\n\n".join([*parts, chat[first]["content"]])}
    return chat


def first_user_message(chat: Sequence[dict[str, Any]]) -> int:
    """The index of the message that takes the documents."""
    for number, message in enumerate(chat):
        if message["role"] == "user":
            return number
    raise InputError("documents need a message of the user to answer")


def heading(document: Document) -> str:
    """The text before a document in a prompt."""
    return f"Document {document.name}:\n\n"


def rounded(number: int) -> int:
    """To two significant digits, for estimates."""
    return int(float(f"{number:.2g}"))
