"""Corpora that are built once and searched often: on disk, or in Milvus."""
