"""From a draft's name to a drafter."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from graft.assemble.auto import auto, with_short
from graft.assemble.copies import lookups, rest, stored
from graft.assemble.networks import rasd, with_either, with_head, with_model, with_target
from graft.assemble.presets import (
    RETRIEVING,
    SELF_PRESETS,
    STORE_PRESETS,
    check_draft,
    runs_network,
)
from graft.assemble.resources import DraftResources
from graft.draft.combined import Combined, within_cost
from graft.draft.drafter import Drafter
from graft.errors import InputError
from graft.match.store_warm_up import warm_up
from graft.match.suffix_array import Store, open_store
from graft.models.checkpoints.tokenizer import tokenizer_fingerprint
from graft.models.heads.config import KINDS


def make_drafter(
    name: str,
    resources: DraftResources | None = None,
    find_store: Callable[[str], Store] | None = None,
) -> Drafter:
    """A preset by its name, with the papers' numbers (METHODS: PLD, CASD, IGPG, REST, RASD), or
    several presets joined by +, merged within the measured step cost."""
    resources = resources or DraftResources()
    if name in resources.ready:
        return resources.ready[name]
    parts = name.split("+")
    guided = bool(resources.heads or resources.ready)
    for part in parts:
        if part not in resources.ready:
            check_draft(part, draft_model=resources.model is not None, head=guided)
    if len(parts) > 1:
        parts.sort(key=runs_network)  # cheap ones first: see Combined
        walked = replace(
            resources, chains=replace(resources.chains, sampled=False)
        )  # trees have no q
        made = [make_drafter(part, walked, find_store) for part in parts]
        return Combined(made, prune=within_cost)
    preset, _, folder = name.partition(":")
    if preset in STORE_PRESETS:
        assert find_store is not None, "no way to open a datastore"
        return _from_store(preset, find_store(folder), resources)
    _check_resources(preset, resources)
    makers = {
        **lookups(),
        "auto": lambda: auto(resources),
        **with_target(resources),
        **with_short(resources),
        **with_model(resources),
        **with_head(resources),
        **(with_either(resources) if resources.ready else {}),
    }
    return makers[name]()


def _from_store(preset: str, store: Store, resources: DraftResources) -> Drafter:
    makers = {
        "store": lambda: stored(store),
        "rest": lambda: rest(store),
        "rasd-rest": lambda: rasd(rest(store), resources),
    }
    return makers[preset]()


def _check_resources(preset: str, resources: DraftResources) -> None:
    """Raise InputError for a preset that these resources cannot make."""
    if preset in KINDS and preset not in resources.heads:
        there = ", ".join(resources.heads)
        raise InputError(f"draft {preset!r} needs a head of that kind; the one here is {there}")
    if preset in RETRIEVING and not resources.shorten:
        raise InputError(f"draft {preset!r} needs a model with a tokenizer")
    if preset in {*SELF_PRESETS, "triforce-head"} and resources.target is None:
        raise InputError(f"draft {preset!r} needs the target itself; get it from the engine")


class Drafters(dict[str, Drafter]):
    """Drafters by name, made at first use."""

    def __init__(self, resources: DraftResources | None = None, tokenizer: "Any" = None) -> None:  # noqa: ANN401
        self.resources, self._tokenizer = resources or DraftResources(), tokenizer
        self._stores: dict[str, Store] = {}
        super().__init__()

    @property
    def names(self) -> list[str]:
        """All presets, and the drafters made so far."""
        return list(dict.fromkeys([*self.resources.presets, *self]))

    def __missing__(self, name: str) -> Drafter:
        """Raises InputError for an unknown name."""
        return self.setdefault(name, make_drafter(name, self.resources, self.store))

    def shelve(self, name: str, store: Store) -> None:
        """Make a datastore available as `store:NAME`."""
        self._stores[name] = store

    def forget(self, name: str) -> None:
        """Drop a datastore and the drafters that use it; running requests keep it."""
        self._stores.pop(name, None)
        for draft in list(self):
            if any(part.partition(":")[2] == name for part in draft.split("+")):
                self.pop(draft, None)

    def store(self, folder: str) -> Store:
        """The datastore in a folder; InputError if it was built with another tokenizer."""
        if folder not in self._stores:
            if self._tokenizer is None:
                raise InputError("a datastore needs a model with a tokenizer")
            store = open_store(folder, tokenizer_fingerprint(self._tokenizer))
            warm_up(store.border)
            self._stores[folder] = store
        return self._stores[folder]
