"""Indexes that find earlier occurrences of tokens."""

from graft.compiled import drop_stale

drop_stale()
