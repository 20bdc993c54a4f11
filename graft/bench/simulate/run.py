"""`graft simulate`: every drafter over every recording, under every table of costs."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Protocol

from graft.assemble.drafters import Drafters
from graft.assemble.presets import PRESETS
from graft.assemble.resources import DraftResources
from graft.bench.decoding import (
    PLAIN,
    DecodeRow,
    decode_ratio,
    decode_speed,
    drafting,
    tokens_per_step,
)
from graft.bench.result_file import Results, read_results
from graft.bench.simulate.costs import RECORDED, find_costs, graft_settings
from graft.bench.simulate.recorded_model import SimulatedClock
from graft.bench.simulate.recordings import Cell, Recording, recordings_of
from graft.bench.simulate.replay import Machine, replay
from graft.bench.simulate.roofline import Place
from graft.bench.statistics import Estimate
from graft.bench.summary import ALL, summarize
from graft.draft.combined import Guide
from graft.draft.drafter import Drafter
from graft.errors import InputError
from graft.models.checkpoints.tokenizer import read_tokenizer
from graft.models.language_model import CHUNKS

AUTO = "auto"  # replayed without head and draft model
STORES = ("store", "rest")  # presets that need a datastore and no network
STORE_GUIDED = "rasd-rest"  # and one that needs both
# Presets that a recorded network enables
GUIDED = ("casd", "casd-prompt", "rasd-pld", STORE_GUIDED)


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
    """One preset on one category of one cell, with its measurement where the file has one."""

    costs: str
    batch: int
    context: int | None
    cell: Cell
    category: str
    draft: str
    prompts: int
    tokens_per_step: float
    nodes_per_step: float
    tokens_per_second: float
    speedup: Estimate
    measured_tokens_per_step: float | None = None
    measured_speedup: float | None = None


@dataclass(slots=True)
class Simulated:
    """All outcomes, and the speed of the simulation."""

    outcomes: list[Outcome] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0


class RecordedNetwork(Protocol):
    """The drafts of a network for the outputs of a file; `draft` is its preset."""

    draft: str

    def drafter(self, cell: Cell, spend: Callable[[float], None]) -> Guide:
        """A new drafter for the outputs of a cell, which adds its seconds by `spend`."""


Networks = Callable[[dict[Cell, list[Recording]]], Sequence[RecordedNetwork]]


def check_replayable(draft: str, networks: Sequence[str] = ()) -> None:
    """Refuse presets that cannot be replayed from recordings."""
    stores, known = [*STORES], [*PRESETS]
    if networks:
        known += [*networks, *(name for name in GUIDED if name != STORE_GUIDED)]
        stores.append(STORE_GUIDED)
    for part in draft.split("+"):
        preset, _, folder = part.partition(":")
        if part not in known and not (preset in stores and folder):
            raise InputError(
                f"draft {part!r} cannot be replayed: choose from {', '.join(known)}, "
                f"{', '.join(f'{name}:FOLDER' for name in stores)}, joined by +; "
                "drafts of a network need a trace (python -m benchmarks trace, simulate)"
            )


def simulate(settings: Simulation, networks: Networks = lambda _: ()) -> Simulated:
    """Replay everything; `networks` finds recorded ones for the outputs of a file."""
    done = Simulated()
    seen: set[Cell] = set()
    for path in settings.files:
        results = read_results(path)
        cells = recordings_of(results, path)
        if repeated := seen & set(cells):
            raise InputError(f"{path} has {repeated.pop()} once more; give every suite once")
        seen |= set(cells)
        makers = _Makers(results, networks(cells))
        for draft in settings.drafts:
            check_replayable(draft, makers.networks)
        measured = _measured(results)
        for name, batch, context in product(settings.costs, settings.batches, settings.contexts):
            priced = find_costs(name, results, settings.like)
            machine = Machine(priced.costs, batch, makers.chunk, context)
            known = measured if name == RECORDED and context is None else {}
            for cell, recordings in cells.items():
                where = (name, batch, context, cell)
                runs = {}
                for draft in dict.fromkeys([PLAIN, *settings.drafts]):
                    clock = SimulatedClock()
                    drafter = makers.make(draft, cell, clock, paced=priced.paced)
                    start = time.perf_counter()
                    runs[draft] = replay(recordings, drafter, machine, clock)
                    done.seconds += time.perf_counter() - start
                    done.steps += sum(run.steps or 0 for run in runs[draft])
                done.outcomes += _outcomes(where, runs, known)
    return done


class _Makers:
    """Makes drafters for the outputs of one file."""

    def __init__(self, results: Results, networks: Sequence[RecordedNetwork]) -> None:
        self._results, self._tokenizer = results, None
        self._networks = {each.draft: each for each in networks}
        device = str(graft_settings(results).get("device", "cpu"))
        self.chunk = CHUNKS.get(device.partition(":")[0], CHUNKS["cpu"])

    @property
    def networks(self) -> list[str]:
        """Presets of the recorded networks."""
        return list(self._networks)

    def make(self, draft: str, cell: Cell, clock: SimulatedClock, *, paced: bool) -> Drafter:
        """A new drafter."""
        if ":" in draft and self._tokenizer is None:
            # a datastore must have the tokenizer of the recorded model
            self._tokenizer = read_tokenizer(self._results.header.settings["model"])
        ready = {
            name: each.drafter(cell, clock.spend)
            for name, each in self._networks.items()
            if _needs(draft, name)
        }
        resources = DraftResources(clock=clock if paced else None, ready=ready)
        return Drafters(resources, self._tokenizer)[draft]


def _needs(draft: str, network: str) -> bool:
    """Whether a preset needs this network."""
    parts = draft.split("+")
    return network in parts or any(part.partition(":")[0] in GUIDED for part in parts)


Where = tuple[str, int, int | None, Cell]
Known = dict[tuple[Cell, int, str, str], tuple[float | None, float | None]]


def _outcomes(where: Where, runs: dict[str, list[DecodeRow]], measured: Known) -> Iterator[Outcome]:
    """Category by category, and all together."""
    name, batch, context, cell = where
    plain = runs[PLAIN]
    categories = sorted({run.category for run in plain})
    for category in [*categories, ALL] if len(categories) > 1 else [ALL]:
        chosen = [i for i, run in enumerate(plain) if category in (ALL, run.category)]
        for draft, all_runs in runs.items():
            mine = [all_runs[i] for i in chosen]
            ratio = decode_ratio([(plain[i], all_runs[i]) for i in chosen])
            drafted = drafting(mine)
            if ratio is None or drafted is None:
                continue
            key = (cell, batch, category, draft)
            yield Outcome(
                name, batch, context, cell, category, draft,
                len(chosen) * batch,
                tokens_per_step(mine) or 1.0,
                drafted.nodes_per_step,
                decode_speed(mine) or 0.0,
                ratio,
                *measured.get(key, (None, None)),
            )  # fmt: skip


def _measured(results: Results) -> Known:
    """Measured tokens per step and speed-ups. An `auto` with a head or draft model is left out: the
    replayed one has neither."""
    if not any(row["variant"] == PLAIN for row in results.measured):
        return {}
    settings = graft_settings(results)
    networks = bool(settings.get("heads") or settings.get("draft_model"))
    _, rows = summarize(results, PLAIN)
    several = {row.cell for row in rows if row.category == ALL}
    found: Known = {}
    for row in rows:
        if networks and AUTO in row.variant.split("+"):
            continue
        category = row.category if row.cell in several else ALL
        speedup = row.decode.mean if row.decode else None
        key = Cell(row.suite, row.temperature, row.context), row.batch, category, row.variant
        found[key] = row.tokens_per_step, speedup
    return found


def ranking(outcomes: Sequence[Outcome]) -> list[tuple[str, float]]:
    """Drafts by the geometric mean of their speed-ups over all cells, the best first."""
    speedups = defaultdict(list)
    for outcome in outcomes:
        if outcome.category == ALL:
            speedups[outcome.draft].append(outcome.speedup.mean)
    means = {draft: geometric_mean(values) for draft, values in speedups.items()}
    return sorted(means.items(), key=lambda pair: -pair[1])
