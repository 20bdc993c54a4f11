"""From a draft's name to a drafter."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from graft.assemble.presets import PRESETS, STORE, runs_network
from graft.assemble.resources import DraftResources
from graft.draft.combined import Combined, within_cost
from graft.draft.drafter import Drafter
from graft.errors import InputError
from graft.match.store_warm_up import warm_up
from graft.match.suffix_array import Store, open_store
from graft.models.checkpoints.tokenizer import tokenizer_fingerprint


def make_drafter(
    name: str,
    resources: DraftResources | None = None,
    find_store: Callable[[str], Store] | None = None,
) -> Drafter:
    """The drafter of a preset, or of several joined by +, whose drafts become one tree that the
    measured step cost limits."""
    resources = resources or DraftResources()
    if name in resources.ready:
        return resources.ready[name]
    parts = name.split("+")
    for part in parts:
        if part not in resources.ready:
            resources.check(part)
    if len(parts) > 1:
        parts.sort(key=runs_network)  # networks last: see Combined
        without_q = replace(resources, chains=replace(resources.chains, sampled=False))
        made = [make_drafter(part, without_q, find_store) for part in parts]
        return Combined(made, prune=within_cost)
    preset, _, folder = name.partition(":")
    if STORE not in PRESETS[preset].needs:
        return PRESETS[preset].make(resources)
    assert find_store is not None, "a datastore needs find_store"
    return PRESETS[preset].make(resources, find_store(folder))


class Drafters(dict[str, Drafter]):
    """Drafters by name, made on first use."""

    def __init__(self, resources: DraftResources | None = None, tokenizer: "Any" = None) -> None:  # noqa: ANN401
        self.resources, self._tokenizer = resources or DraftResources(), tokenizer
        self._stores: dict[str, Store] = {}
        super().__init__()

    @property
    def names(self) -> list[str]:
        """All presets that can be made, and the drafters added by name."""
        return list(dict.fromkeys([*self.resources.presets, *self]))

    def __missing__(self, name: str) -> Drafter:
        """InputError for an unknown name."""
        return self.setdefault(name, make_drafter(name, self.resources, self.store))

    def add_store(self, name: str, store: Store) -> None:
        """Make `store:NAME` draft from this datastore."""
        self._stores[name] = store

    def remove_store(self, name: str) -> None:
        """Remove a datastore and the drafters that use it; running requests keep it."""
        self._stores.pop(name, None)
        for draft in list(self):
            if any(part.partition(":")[2] == name for part in draft.split("+")):
                self.pop(draft, None)

    def store(self, folder: str) -> Store:
        """The datastore in a folder; InputError if it was made with another tokenizer."""
        if folder not in self._stores:
            if self._tokenizer is None:
                raise InputError("a datastore needs a model with a tokenizer")
            store = open_store(folder, tokenizer_fingerprint(self._tokenizer))
            warm_up(store.border)
            self._stores[folder] = store
        return self._stores[folder]
