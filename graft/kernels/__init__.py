"""Tensor functions, independent of models and draft trees."""

from graft.compiled import drop_stale

drop_stale()
