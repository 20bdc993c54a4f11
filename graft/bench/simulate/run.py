"""`graft simulate`: every drafter over every recording, under every table of costs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from graft.assemble.drafters import Drafters
from graft.assemble.presets import presets_of
from graft.assemble.resources import DraftResources
from graft.bench.decoding import PLAIN, DecodeRow
from graft.bench.result_file import Results, read_results
from graft.bench.simulate.costs import RECORDED, find_costs, graft_settings
from graft.bench.simulate.recorded_model import SimulatedClock
from graft.bench.simulate.recordings import Cell, Recording, recordings_of
from graft.bench.simulate.replay import Machine, replay
from graft.bench.simulate.roofline import Place
from graft.bench.summary import Summary, summarize, summarize_rows
from graft.draft.combined import Guide
from graft.draft.drafter import Drafter
from graft.errors import InputError
from graft.models.checkpoints.tokenizer import read_tokenizer
from graft.models.language_model import CHUNKS

AUTO = "auto"  # replayed without head and draft model
STORES = ("store", "rest")  # presets that need a datastore and no network


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What is replayed; a context of None is the recorded one."""

    files: Sequence[Path]
    drafts: Sequence[str]
    costs: Sequence[str] = (RECORDED,)
    batches: Sequence[int] = (1,)
    contexts: Sequence[int | None] = (None,)
    like: Place | None = None

    def __post_init__(self) -> None:
        if not self.drafts:
            raise InputError("no drafts to replay; give some (--draft copy,pld)")
        if any(batch < 1 for batch in self.batches):
            raise InputError("--batch takes whole numbers from 1 on")
        if any(context is not None and context < 1 for context in self.contexts):
            raise InputError("--context takes numbers of tokens from 1 on")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A prediction under one cost table, with the measurement of the same preset if there is one.

    `priced_context` replaces the recorded one.
    """

    costs: str
    priced_context: int | None
    predicted: Summary
    measured: Summary | None = None


@dataclass(slots=True)
class Simulated:
    """All outcomes, and the speed of the simulation."""

    outcomes: list[Outcome] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0


class Networks(Protocol):
    """Recorded drafts of networks; `presets` and `stores` are what can be replayed with them."""

    presets: Sequence[str]
    stores: Sequence[str]

    def drafters(
        self, draft: str, cell: Cell, spend: Callable[[float], None]
    ) -> Mapping[str, Guide]:
        """New drafters of the networks that a preset needs; they add their seconds by `spend`."""


FindNetworks = Callable[[dict[Cell, list[Recording]]], Networks]


def simulate(settings: Simulation, find_networks: FindNetworks | None = None) -> Simulated:
    """Replay everything; `find_networks` returns the networks for the outputs of a file."""
    done = Simulated()
    seen: set[Cell] = set()
    for path in settings.files:
        results = read_results(path)
        cells = recordings_of(results, path)
        if repeated := seen & set(cells):
            raise InputError(f"{path} has {repeated.pop()} once more; give every suite once")
        seen |= set(cells)
        file = _File(results, cells, find_networks(cells) if find_networks else None)
        for draft in settings.drafts:
            file.check_replayable(draft)
        measured = _measured(results)
        for costs, context in product(settings.costs, settings.contexts):
            rows = [
                row
                for batch in settings.batches
                for row in file.replayed(settings, costs, context, batch, done)
            ]
            known = measured if costs == RECORDED and context is None else {}
            done.outcomes += [
                Outcome(costs, context, each, known.get(_key(each)))
                for each in summarize_rows(rows, PLAIN, {})
            ]
    return done


@dataclass(slots=True)
class _File:
    """The recordings of one file, and what their drafters are made of."""

    results: Results
    cells: dict[Cell, list[Recording]]
    networks: Networks | None
    _tokenizer: Any = None

    def check_replayable(self, draft: str) -> None:
        """Refuse presets that cannot be replayed from recordings."""
        stores, known = [*STORES], presets_of()
        if self.networks:
            stores, known = [*stores, *self.networks.stores], [*known, *self.networks.presets]
        for part in draft.split("+"):
            preset, _, folder = part.partition(":")
            if part not in known and not (preset in stores and folder):
                raise InputError(
                    f"draft {part!r} cannot be replayed: choose from {', '.join(known)}, "
                    f"{', '.join(f'{name}:FOLDER' for name in stores)}, joined by +; "
                    "drafts of a network need a trace (python -m benchmarks trace, simulate)"
                )

    def replayed(
        self, settings: Simulation, costs: str, context: int | None, batch: int, done: Simulated
    ) -> list[DecodeRow]:
        """The rows of every cell and draft, `plain` included; counts their steps and seconds."""
        priced = find_costs(costs, self.results, settings.like)
        device = str(graft_settings(self.results).get("device", "cpu")).partition(":")[0]
        machine = Machine(priced.costs, batch, CHUNKS.get(device, CHUNKS["cpu"]), context)
        rows = []
        for cell, draft in product(self.cells, dict.fromkeys([PLAIN, *settings.drafts])):
            clock = SimulatedClock()
            drafter = self._drafter(draft, cell, clock, paced=priced.paced)
            start = time.perf_counter()
            runs = replay(self.cells[cell], drafter, machine, clock)
            done.seconds += time.perf_counter() - start
            done.steps += sum(run.steps or 0 for run in runs)
            rows += [replace(run, variant=draft, **asdict(cell)) for run in runs]
        return rows

    def _drafter(self, draft: str, cell: Cell, clock: SimulatedClock, *, paced: bool) -> Drafter:
        if ":" in draft and self._tokenizer is None:
            # a datastore must have the tokenizer of the recorded model
            self._tokenizer = read_tokenizer(self.results.header.settings["model"])
        ready = self.networks.drafters(draft, cell, clock.spend) if self.networks else {}
        resources = DraftResources(clock=clock if paced else None, ready=ready)
        return Drafters(resources, self._tokenizer)[draft]


def _key(summary: Summary) -> tuple:
    return summary.cell, summary.category, summary.variant


def _measured(results: Results) -> dict[tuple, Summary]:
    """Measurements of the file. An `auto` with a head or draft model is left out: the replayed one
    has neither."""
    if not any(row["variant"] == PLAIN for row in results.measured):
        return {}
    settings = graft_settings(results)
    networks = bool(settings.get("heads") or settings.get("draft_model"))
    _, rows = summarize(results, PLAIN)
    return {_key(row): row for row in rows if not (networks and AUTO in row.variant.split("+"))}
