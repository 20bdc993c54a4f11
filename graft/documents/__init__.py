"""Files to text, and text to a prompt that the model can answer from."""

from graft.documents.prompt import document_messages
from graft.documents.read import Document, read_document, read_documents

__all__ = ["Document", "document_messages", "read_document", "read_documents"]
