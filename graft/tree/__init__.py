"""Draft trees."""

from graft.compiled import drop_stale

drop_stale()
