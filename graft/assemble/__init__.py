"""The one place where a name becomes an object."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graft.assemble.checks import VERIFIERS as VERIFIERS
    from graft.assemble.checks import check_verifier as check_verifier
    from graft.assemble.drafters import Drafters as Drafters
    from graft.assemble.drafters import make_drafter as make_drafter
    from graft.assemble.heads import machine_clock as machine_clock
    from graft.assemble.loading import engine_around as engine_around
    from graft.assemble.loading import load as load
    from graft.assemble.loading import rows_key_of as rows_key_of
    from graft.assemble.networks import EAGLE_TREE as EAGLE_TREE
    from graft.assemble.networks import triforce as triforce
    from graft.assemble.presets import EITHER_PRESETS as EITHER_PRESETS
    from graft.assemble.presets import HEAD_PRESETS as HEAD_PRESETS
    from graft.assemble.presets import MODEL_PRESETS as MODEL_PRESETS
    from graft.assemble.presets import PRESETS as PRESETS
    from graft.assemble.presets import SELF_PRESETS as SELF_PRESETS
    from graft.assemble.presets import SHORT_PRESETS as SHORT_PRESETS
    from graft.assemble.presets import STORE_PRESETS as STORE_PRESETS
    from graft.assemble.presets import check_draft as check_draft
    from graft.assemble.resources import DraftResources as DraftResources
    from graft.assemble.verifiers import make_verifier as make_verifier

# Imported on first use: the checks of a command's options must not wait for torch.
_MODULES = {
    "checks": "VERIFIERS check_verifier",
    "drafters": "Drafters make_drafter",
    "heads": "machine_clock",
    "loading": "engine_around load rows_key_of",
    "networks": "EAGLE_TREE triforce",
    "presets": "EITHER_PRESETS HEAD_PRESETS MODEL_PRESETS PRESETS SELF_PRESETS SHORT_PRESETS "
    "STORE_PRESETS check_draft",
    "resources": "DraftResources",
    "verifiers": "make_verifier",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'graft.assemble' has no attribute {name!r}")
    return getattr(importlib.import_module(f"graft.assemble.{_HOMES[name]}"), name)
