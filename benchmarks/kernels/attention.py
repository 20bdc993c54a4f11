"""Attention of one layer alone: checked against the definition in fp32, then timed."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graft import machine
from graft.bench.kernels.problem import Problem, input_sets, make_problem
from graft.bench.kernels.rivals import Kernel, Prepare, memory_needed, refusal, scores_needed
from graft.bench.kernels.settings import KernelSettings
from graft.bench.kernels.timing import seconds
from graft.kernels.tree_attention_torch import tree_attention
from graft.models.probe import TOLERANCE

CHECKED = 777  # context at which answers are checked: no multiple of anything, and short
FRESH = 1_000_003  # seed of what is checked; nothing that is timed has it


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds, or a note why there are none; else the note is the form that was fastest.

    `error`: the largest difference from the definition over its largest number.
    """

    seconds: float | None = None
    error: float | None = None
    note: str | None = None


Checks = list[tuple[Problem, Tensor]]  # with what they should give


@torch.inference_mode()
def measure_point(
    wanted: Iterable[Kernel], settings: KernelSettings, context: int, nodes: int
) -> Iterator[tuple[Kernel, Timed]]:
    """Every kernel on the same numbers."""
    problems = [make_problem(settings, context, nodes, seed=0)]
    for seed in range(1, input_sets(settings.shape, context + nodes, settings)):
        more = make_problem(settings, context, nodes, seed)
        problems.append(replace(more, layout=problems[0].layout))
    checks = _checks(settings, problems[0])
    for kernel in wanted:
        if memory_needed(kernel, problems[0]) > free_memory(settings.device):
            yield kernel, Timed(note="its scores do not fit the memory that is free")
            continue
        forms = [_try(kernel, form, problems, checks, settings) for form in kernel.forms]
        yield kernel, min(forms, key=lambda each: each.seconds or torch.inf)


def _checks(settings: KernelSettings, problem: Problem) -> Checks:
    """A short context, where the tree weighs much, and the whole one if its scores fit."""
    nodes, rows = len(problem.query), problem.keys.shape[1]
    short = min(rows - nodes, CHECKED)
    checked = [make_problem(settings, short, nodes, FRESH, nodes_matter=True)]
    if scores_needed(problem) < free_memory(settings.device):
        checked.append(problem)
    return [(each, _definition(each)) for each in checked]


def _definition(problem: Problem) -> Tensor:
    """[N, H, D] by the plain kernel in fp32, of the numbers as they were rounded."""
    query, keys, values = (x.float() for x in (problem.query, problem.keys, problem.values))
    return tree_attention(query, keys, values, problem.layout, scale=problem.scale)


def _try(
    kernel: Kernel, form: str, problems: list[Problem], checks: Checks, settings: KernelSettings
) -> Timed:
    """One form; SDPA refuses what it cannot do by raising."""
    prepare = kernel.forms[form]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            error = max(_error(prepare, *check) for check in checks) if kernel.masked else None
            if error is not None and not error <= TOLERANCE[settings.torch_dtype]:
                return Timed(error=error, note=f"wrong: differs from the definition by {error:.2g}")
            taken = seconds(
                [prepare(problem) for problem in problems],
                repeats=settings.repeats,
                device=settings.device,
                captured=kernel.captured,
            )
        except Exception as refused:  # a compiler's errors have no common type
            return Timed(note=refusal(refused, told))
    return Timed(taken, error, form or None)


def _error(prepare: Prepare, checked: Problem, expected: Tensor) -> float:
    difference = prepare(checked)().float() - expected
    return float(difference.abs().max() / expected.abs().max())


def free_memory(device: torch.device) -> float:
    """Bytes that can be taken now."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return machine.memory().available or torch.inf
