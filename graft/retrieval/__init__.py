"""Retrieval of passages that are relevant to a question."""
