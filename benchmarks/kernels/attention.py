"""Attention of one layer alone: checked against the definition in fp32, then timed."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.kernels.attention_kernels import (
    Kernel,
    Prepare,
    memory_needed,
    refusal,
    scores_needed,
)
from benchmarks.kernels.problem import Problem, input_sets, make_problem
from benchmarks.kernels.settings import KernelPlan
from benchmarks.kernels.timing import seconds
from graft import machine
from graft.kernels.tree_attention_torch import tree_attention
from graft.models.probe import TOLERANCE

CHECKED = 777  # context at which answers are checked: no multiple of anything, and short
FRESH = 1_000_003  # seed of what is checked; nothing that is timed has it


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds and the fastest form, or why there are none.

    `max_error`: the largest difference from the definition over its largest number.
    """

    seconds: float | None = None
    max_error: float | None = None
    form: str | None = None
    error: str | None = None


Checks = list[tuple[Problem, Tensor]]  # with what they should give


@torch.inference_mode()
def measure_point(
    wanted: Iterable[Kernel], plan: KernelPlan, context: int, nodes: int
) -> Iterator[tuple[Kernel, Timed]]:
    """Every kernel on the same numbers."""
    problems = [make_problem(plan, context, nodes, seed=0)]
    for seed in range(1, input_sets(plan.shape, context + nodes, plan)):
        more = make_problem(plan, context, nodes, seed)
        problems.append(replace(more, layout=problems[0].layout))
    checks = _checks(plan, problems[0])
    for kernel in wanted:
        if memory_needed(kernel, problems[0]) > free_memory(plan.device):
            yield kernel, Timed(error="its scores do not fit the free memory")
            continue
        forms = [_try(kernel, form, problems, checks, plan) for form in kernel.forms]
        yield kernel, min(forms, key=lambda each: each.seconds or torch.inf)


def _checks(plan: KernelPlan, problem: Problem) -> Checks:
    """A short context, where the tree weighs much, and the whole one if its scores fit."""
    nodes, rows = len(problem.query), problem.keys.shape[1]
    short = min(rows - nodes, CHECKED)
    checked = [make_problem(plan, short, nodes, FRESH, nodes_matter=True)]
    if scores_needed(problem) < free_memory(plan.device):
        checked.append(problem)
    return [(each, _definition(each)) for each in checked]


def _definition(problem: Problem) -> Tensor:
    """[N, H, D] by the plain kernel in fp32, of the numbers as they were rounded."""
    query, keys, values = (x.float() for x in (problem.query, problem.keys, problem.values))
    return tree_attention(query, keys, values, problem.layout, scale=problem.scale)


def _try(
    kernel: Kernel, form: str, problems: list[Problem], checks: Checks, plan: KernelPlan
) -> Timed:
    """One form; SDPA refuses what it cannot do by raising."""
    prepare = kernel.forms[form]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            wrong = max(_error(prepare, *check) for check in checks) if kernel.masked else None
            if wrong is not None and not wrong <= TOLERANCE[plan.torch_dtype]:
                message = f"wrong: differs from the definition by {wrong:.2g}"
                return Timed(max_error=wrong, error=message)
            taken = seconds(
                [prepare(problem) for problem in problems],
                repeats=plan.repeats,
                device=plan.device,
                captured=kernel.captured,
            )
        except Exception as refused:  # a compiler's errors have no common type
            return Timed(error=refusal(refused, caught))
    return Timed(taken, wrong, form or None)


def _error(prepare: Prepare, checked: Problem, expected: Tensor) -> float:
    difference = prepare(checked)().float() - expected
    return float(difference.abs().max() / expected.abs().max())


def free_memory(device: torch.device) -> float:
    """Bytes that can be taken now."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return machine.memory().available or torch.inf
