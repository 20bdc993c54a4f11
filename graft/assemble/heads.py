"""Draft heads, loaded at first use."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from graft.draft.heads.costs import head_costs, warm_shapes, with_overhead
from graft.draft.heads.head import DraftHead, growth_for
from graft.models.heads.load import load_head
from graft.models.load import LoadedModel
from graft.models.step_costs import costs_are_given


class Heads(Mapping[str, DraftHead]):
    """A target's heads by kind, the preferred one first.

    The first use of a head loads and times it. That runs the target too, so no step may run then.
    """

    def __init__(
        self, folders: Mapping[str, Path], target: LoadedModel, *, sequences: int, warm: bool
    ) -> None:
        self._folders, self._target = folders, target
        self._sequences, self._warm = sequences, warm
        self._loaded: dict[str, DraftHead] = {}

    def __getitem__(self, kind: str) -> DraftHead:
        if kind not in self._loaded:
            self._loaded[kind] = self._load(self._folders[kind])
        return self._loaded[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._folders

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)

    def _load(self, folder: Path) -> DraftHead:
        runner = load_head(folder, self._target)
        on_gpu = runner.device.type == "cuda"
        if on_gpu:  # captured graphs need fixed addresses
            runner.hold(self._sequences)
        if self._warm and max(runner.config.feature_layers, default=-1) >= 0:
            self._target.model.warm_up(self._sequences - 1)  # its graphs keep more features now
        growth = growth_for(runner)
        identity, dtype = self._target.identity, self._target.dtype
        costs = head_costs(runner, growth, identity, dtype)
        head = DraftHead(runner, growth, costs)
        if on_gpu and self._warm:
            warm_shapes(head, self._sequences - 1)
        return with_overhead(head, identity, dtype)


def machine_clock() -> Callable[[], float] | None:
    """The clock that drafts are timed by; None if costs come from a table."""
    return None if costs_are_given() else time.perf_counter
