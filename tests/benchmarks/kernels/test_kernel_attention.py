from dataclasses import replace

import pytest
import torch

from benchmarks.kernels.attention import measure_point
from benchmarks.kernels.attention_kernels import Kernel, kernels
from benchmarks.kernels.problem import make_problem, random_tree
from benchmarks.kernels.settings import KernelOptions


@pytest.fixture
def settings():
    return KernelOptions(shape="6/2/16", contexts=(40,), nodes=(9,), device="cpu", repeats=1).plan()


def test_all_kernels_give_the_same_and_are_timed(settings):
    found = list(measure_point(kernels(settings), settings, 40, 9))
    names = [kernel.name for kernel, _ in found]
    assert names[:2] == ["panels", "torch"]
    assert {"sdpa flash, no mask", "sdpa flash, mask", "sdpa math, mask"} < set(names)
    for kernel, timed in found:
        assert timed.seconds > 0, (kernel.name, timed)
        assert (timed.max_error is None) == (not kernel.masked)
        assert timed.max_error is None or timed.max_error < 1e-5, kernel.name


def test_every_form_of_a_kernel_gives_the_same(settings):
    problem = make_problem(settings, 40, 9, seed=3, nodes_matter=True)
    masked = [kernel for kernel in kernels(settings) if kernel.masked]
    results = [prepare(problem)() for kernel in masked for prepare in kernel.forms.values()]
    assert len(results) > len(masked)
    for result in results:
        torch.testing.assert_close(result, results[0], rtol=1e-4, atol=1e-5)


def test_other_dtypes_and_odd_heads_use_the_plain_kernel(settings):
    assert [k.name for k in kernels(replace(settings, dtype="bf16")) if k.ours] == ["torch"]
    odd = replace(settings.shape, head_size=24)
    assert [k.name for k in kernels(replace(settings, shape=odd)) if k.ours] == ["torch"]


def test_a_kernel_that_looks_at_the_wrong_nodes_is_not_timed(settings):
    unmasked = next(kernel for kernel in kernels(settings) if not kernel.masked)
    wrong = replace(unmasked, name="wrong", masked=True)
    [(_, timed)] = measure_point([wrong], settings, 40, 9)
    assert timed.seconds is None
    assert "wrong: differs from the definition by" in timed.error
    assert timed.max_error > 0.01


def test_a_kernel_that_fails_has_an_error_and_the_others_are_timed(settings):
    def refuse(problem):
        raise RuntimeError("not with  such\nheads")

    refusing = Kernel("refusing", {"": refuse})
    found = list(measure_point([refusing, *kernels(settings)[:1]], settings, 40, 9))
    assert found[0][1].seconds is None
    assert found[0][1].error == "not with such heads"
    assert found[1][1].seconds > 0


def test_the_fastest_form_counts(settings):
    def slow(problem):
        return lambda: problem.query + sum(torch.randn(100_000).sum() for _ in range(20))

    def fast(problem):
        return lambda: problem.query

    two = Kernel("two", {"slow": slow, "fast": fast}, masked=False)
    [(_, timed)] = measure_point([two], settings, 40, 9)
    assert timed.form == "fast"


def test_kernels_whose_scores_do_not_fit_are_not_timed(settings, monkeypatch):
    monkeypatch.setattr("benchmarks.kernels.attention.free_memory", lambda device: 1000)
    found = {
        kernel.name: timed for kernel, timed in measure_point(kernels(settings), settings, 40, 9)
    }
    assert "do not fit the free memory" in found["sdpa math, mask"].error
    assert found["panels"].seconds > 0


def test_random_trees_branch():
    tree = random_tree(32, 1000, seed=0)
    assert len(tree) == 32
    assert 3 < tree.depths.max() < 31
    assert len(set(tree.parents.tolist())) < 31
