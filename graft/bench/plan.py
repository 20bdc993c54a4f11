"""In which order what is measured: prompt by prompt all systems, so that a slow minute of the
machine falls on all alike."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from graft.bench.encode import Encoded, Workload
from graft.bench.records import Key
from graft.bench.settings import WHOLE, Settings
from graft.bench.systems import System
from graft.errors import InputError


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement to make: a system, and the prompts it gets at once."""

    system: System
    prompts: tuple[Encoded, ...]
    temperature: float
    repeat: int
    context: int = WHOLE

    @property
    def batch(self) -> int:
        """How many prompts at once."""
        return len(self.prompts)

    @property
    def numbers(self) -> list[int]:
        """The prompts' numbers; they are also the seeds of sampled answers."""
        return [each.prompt.number for each in self.prompts]

    @property
    def category(self) -> str:
        """The prompts' category, or "mixed"."""
        found = {each.prompt.category for each in self.prompts}
        return found.pop() if len(found) == 1 else "mixed"

    @property
    def key(self) -> Key:
        """The same as that of the answer it yields."""
        cell = self.temperature, self.batch, self.context
        return tuple(self.numbers), self.system.name, *cell, self.repeat


def turns(settings: Settings, systems: list[System], workload: Workload) -> Iterator[Turn]:
    """Cell by cell; within one, who begins changes with every group of prompts and every repeat.

    A group is as many prompts as the batch has; those that do not fill a last group are left out,
    and so are groups beyond the number asked for.
    """
    for (context, prompts), batch in product(workload.prompts.items(), settings.batches):
        groups = _groups(prompts, batch)[: settings.groups]
        able = [system for system in systems if batch == 1 or system.batches]
        for temperature, repeat in product(settings.temperatures, range(settings.repeats)):
            for place, group in enumerate(groups):
                shift = (place + repeat) % max(len(able), 1)
                for system in able[shift:] + able[:shift]:
                    yield Turn(system, group, temperature, repeat, context)


def _groups(prompts: list[Encoded], batch: int) -> list[tuple[Encoded, ...]]:
    if len(prompts) < batch:
        raise InputError(
            f"--batch {batch} needs {batch} prompts, but {len(prompts)} are chosen; raise --limit"
        )
    whole = len(prompts) - len(prompts) % batch
    return [tuple(prompts[start : start + batch]) for start in range(0, whole, batch)]
