"""Which way a product takes: the fastest of those with the same bits, kept on disk."""

import json

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from graft.kernels import product_choice
from graft.kernels.product_choice import FEW, LIBRARY, ChosenProduct
from graft.kernels.product_triton import FEW_ROWS, default_plan, plans

if torch.cuda.is_available():
    pytest.skip("measured there: pytest -m gpu", allow_module_level=True)


class Measured(ChosenProduct):
    """With invented times: the library takes `library` seconds, our plans 1, 2, 3 ..."""

    def __init__(self, *, library: float, same: bool) -> None:
        super().__init__([torch.randn(40, 64)])
        self.library, self.same, self.timed = library, same, []

    def _seconds(self, plan, x):
        self.timed.append((plan, len(x)))
        if plan is LIBRARY:
            return self.library
        return 1.0 + plans(len(x), 40, 64, x.itemsize).index(plan)

    def _run(self, plan, index, x, out=None):
        return torch.ones(1) if plan is not LIBRARY or self.same else torch.zeros(1)


def test_without_a_gpu_nothing_is_measured():
    weights = [torch.randn(40, 64), torch.randn(40, 64)]
    product, x = ChosenProduct(weights), torch.randn(3, 64)
    torch.testing.assert_close(product(1, x), x @ weights[1].T)
    out = torch.empty(3, 40)
    assert product(0, x, out) is out


@pytest.mark.parametrize(
    ("rows", "library", "same", "chosen"),
    [
        (24, 0.5, True, "library"),
        (24, 0.5, False, "ours"),
        (24, 1.5, True, "ours"),
        (FEW_ROWS, 0.1, True, "ours"),
        (FEW + 64, 9.0, True, "library"),
        (FEW + 64, 0.1, False, "library"),  # in float32
    ],
)
def test_library_is_used_where_it_is_faster_and_has_the_same_bits(rows, library, same, chosen):
    product = Measured(library=library, same=same)
    way = product._measure(rows)
    assert (way is LIBRARY) == (chosen == "library")
    if way is not LIBRARY:
        assert way == plans(rows, 40, 64, 4)[0]


def test_plans_are_measured_once_per_tile():
    product = Measured(library=9.0, same=False)
    product._measure(20)
    count = len(product.timed)
    assert count == len(plans(20, 40, 64, 4))
    product._measure(24)
    assert len(product.timed) == count


def test_choices_are_kept(monkeypatch, tmp_path):
    file = tmp_path / "products" / "gpu.json"
    monkeypatch.setattr(product_choice, "_file", lambda _: file)
    product_choice._kept.cache_clear()
    try:
        device = torch.device("cpu")
        assert product_choice._kept(device) == {}
        product_choice._keep(device, {"a": None})
        assert json.loads(file.read_text()) == {"a": None}
        product_choice._kept.cache_clear()
        assert product_choice._kept(device) == {"a": None}
        file.write_text("{")  # damaged: measured again
        product_choice._kept.cache_clear()
        assert product_choice._kept(device) == {}
    finally:
        product_choice._kept.cache_clear()


def test_segments_give_parts():
    weight = torch.randn(16, 2 * 8192)
    product = ChosenProduct([weight], cut=True)
    assert product.segments == 8
    x = torch.randn(2, 2 * 8192)
    parts = product(0, x)
    assert parts.shape == (8, 2, 16)
    torch.testing.assert_close(parts.sum(0), x @ weight.T, rtol=1e-3, atol=1e-2)
    assert default_plan(2, 16, 2 * 8192, 4)
