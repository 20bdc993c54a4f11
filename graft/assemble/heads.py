"""Draft heads, put to work when somebody first asks for one."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from graft.draft.heads.costs import head_costs
from graft.draft.heads.head import DraftHead, growth_for
from graft.draft.heads.overhead import with_overhead
from graft.draft.heads.warm import warm_shapes
from graft.models.heads.load import load_head
from graft.models.load import LoadedModel
from graft.models.step_costs import costs_are_given


class Heads(Mapping[str, DraftHead]):
    """A target's heads by their kind, the favourite first.

    The first use of one loads and times it, which plain decoding need not wait for. It runs the
    target too: nobody else may at that moment.
    """

    def __init__(
        self, folders: Mapping[str, Path], target: LoadedModel, *, sequences: int, warm: bool
    ) -> None:
        self._folders, self._target = folders, target
        self._sequences, self._warm = sequences, warm
        self._at_work: dict[str, DraftHead] = {}

    def __getitem__(self, kind: str) -> DraftHead:
        if kind not in self._at_work:
            self._at_work[kind] = self._start(self._folders[kind])
        return self._at_work[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._folders

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)

    def _start(self, folder: Path) -> DraftHead:
        runner = load_head(folder, self._target)
        on_gpu = runner.device.type == "cuda"
        if on_gpu:  # captured graphs read rows where they lie
            runner.hold(self._sequences)
        growth = growth_for(runner)
        identity, dtype = self._target.identity, self._target.dtype
        costs = head_costs(runner, growth, identity, dtype)
        helper = DraftHead(runner, growth, costs, clock=machine_clock())
        if on_gpu and self._warm:
            warm_shapes(helper, self._sequences - 1)
        return with_overhead(helper, identity, dtype)


def machine_clock() -> Callable[[], float] | None:
    """What drafts are timed by, unless costs come from a table."""
    return None if costs_are_given() else time.perf_counter
