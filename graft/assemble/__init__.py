"""The one place where a name becomes an object."""

from graft.assemble.drafters import Drafters, make_drafter
from graft.assemble.heads import machine_clock
from graft.assemble.loading import engine_around, load, rows_key_of
from graft.assemble.networks import EAGLE_TREE, triforce
from graft.assemble.presets import (
    EITHER_PRESETS,
    HEAD_PRESETS,
    MODEL_PRESETS,
    PRESETS,
    SELF_PRESETS,
    SHORT_PRESETS,
    STORE_PRESETS,
    check_draft,
)
from graft.assemble.resources import DraftResources
from graft.assemble.verifiers import VERIFIERS, check_verifier, make_verifier

__all__ = [
    "EAGLE_TREE",
    "EITHER_PRESETS",
    "HEAD_PRESETS",
    "MODEL_PRESETS",
    "PRESETS",
    "SELF_PRESETS",
    "SHORT_PRESETS",
    "STORE_PRESETS",
    "VERIFIERS",
    "Drafters",
    "DraftResources",
    "check_draft",
    "check_verifier",
    "engine_around",
    "load",
    "machine_clock",
    "make_drafter",
    "make_verifier",
    "rows_key_of",
    "triforce",
]
