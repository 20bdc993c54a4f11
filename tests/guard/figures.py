"""Figures that depend on the code alone, under a checked-in table of costs: `make figures`.

Recorded answers of smollm2 (`recordings.jsonl`, to the prompts of `questions.jsonl`) are replayed
through the presets without a model: what they guess, look up and would gain. A tiny model answers
with the presets: what a step asks of torch, and how much memory it takes on the way.
"""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tiny import tiny_draft_model, tiny_engine, tiny_network
from tiny_heads import tiny_head
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graft import SamplingParams
from graft.assemble.drafters import Drafters
from graft.bench.decoding import decode_ratio, nodes_per_step, tokens_per_step
from graft.bench.result_file import read_results
from graft.bench.simulate.recorded_model import SimulatedClock
from graft.bench.simulate.recordings import recordings_of
from graft.bench.simulate.replay import Machine, replay
from graft.match.copy_index import CopyIndex
from graft.match.ngram import NgramCounts, NgramIndex
from graft.match.suffix_automaton import SuffixAutomaton
from graft.models.step_costs import REFERENCE, StepCosts

FOLDER = Path(__file__).parent
RECORDINGS, FIGURES = FOLDER / "recordings.jsonl", FOLDER / "figures.json"
REPLAYED = ("auto", "pld", "copy", "igpg", "pld+copy")
ANSWERED = ("plain", "auto", "copy", "sd", "eagle2", "casd")
PROMPT = "the man in the rain and the woman on the train: on and on and on"
INDEXES = (SuffixAutomaton, NgramIndex, CopyIndex, NgramCounts)

Figures = dict[str, dict[str, float]]


def all_figures() -> Figures:
    """By preset, those of replays first."""
    return {**replay_figures(), **step_figures()}


def replay_figures() -> Figures:
    """What presets guess, look up and would gain."""
    cells = recordings_of(read_results(RECORDINGS), RECORDINGS)
    recordings = list(chain.from_iterable(cells.values()))
    machine = Machine(StepCosts.read(REFERENCE))
    drafters = Drafters()
    plain = replay(recordings, drafters["plain"], machine, SimulatedClock())
    found = {}
    for draft in REPLAYED:
        with counted_lookups() as lookups:
            runs = replay(recordings, drafters[draft], machine, SimulatedClock())
        steps = sum(run.steps for run in runs)
        found[f"replayed {draft}"] = {
            "tokens per step": tokens_per_step(runs),
            "nodes per step": nodes_per_step(runs),
            "lookups per step": lookups() / steps,
            "speed-up": decode_ratio(list(zip(plain, runs, strict=True))).mean,
        }
    return found


@contextmanager
def counted_lookups() -> Iterator[Callable[[], int]]:
    """How often indexes were asked."""
    with ExitStack() as stack:
        watched = [
            stack.enter_context(
                mock.patch.object(index, "lookup", autospec=True, side_effect=index.lookup)
            )
            for index in INDEXES
        ]
        yield lambda: sum(each.call_count for each in watched)


def step_figures() -> Figures:
    """What a step of the engine asks of torch, and its memory."""
    network = tiny_network()
    engine = tiny_engine(
        network, draft_model=tiny_draft_model(), heads=[tiny_head("eagle2", network)]
    )
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    found = {}
    for draft in ANSWERED:
        engine.generate(PROMPT, params, draft=draft)  # what is made once is made now
        with Dispatched() as dispatched:
            steps = engine.generate(PROMPT, params, draft=draft).stats.steps
        found[f"answered {draft}"] = {
            "operations per step": dispatched.operations / steps,
            "tensors per step": dispatched.tensors / steps,
            "peak bytes per step": _peak(engine, draft, params),
        }
    return found


class Dispatched(TorchDispatchMode):
    """Counts operations, and tensors that got memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.tensors = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        given = {_memory(each) for each in tree_leaves((args, kwargs)) if _is_tensor(each)}
        outcome = func(*args, **(kwargs or {}))
        made = {_memory(each) for each in tree_leaves(outcome) if _is_tensor(each)}
        self.operations += 1
        self.tensors += len(made - given)
        return outcome


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _peak(engine: Any, draft: str, params: SamplingParams) -> float:
    """Mean of what a step takes at most beyond what was taken before it."""
    peaks = []
    step = engine.loop.step

    def watched() -> None:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        step()
        peaks.append(tracemalloc.get_traced_memory()[1] - before)

    tracemalloc.start()
    try:
        with mock.patch.object(engine.loop, "step", watched):
            engine.generate(PROMPT, params, draft=draft)
    finally:
        tracemalloc.stop()
    return sum(peaks) / len(peaks)


def write(path: Path = FIGURES) -> None:
    """The figures of the code as it is."""
    rounded = {
        name: {figure: float(f"{value:.5g}") for figure, value in figures.items()}
        for name, figures in all_figures().items()
    }
    path.write_text(json.dumps(rounded, indent=1) + "\n")


if __name__ == "__main__":
    write()
