"""Datastores and corpora: texts, building, search."""
