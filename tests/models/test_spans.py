"""Rows of a text computed anew in part, behind every forward."""

import numpy as np
import pytest
import torch
from test_rotation import FORWARDS, model_of, text
from tiny_architectures import VOCABULARY, build

from graft.models.language_model import LanguageModel
from graft.models.llama_shape import read_llama
from graft.models.load import build_forward
from graft.models.spans import append_rows, read_rows, rewrite, rewrite_first
from graft.tree.draft_tree import from_paths

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = text(90)
LAST = len(TEXT)


@pytest.fixture(params=["panels", "lean", "hook", "invariant"])
def model(request) -> LanguageModel:
    if request.param == "invariant":
        forward, _ = build_forward(build("qwen2"), name="tiny", kind="lean", invariant=True)
    else:
        forward = FORWARDS[request.param](build("qwen2"))
    return LanguageModel(forward, vocabulary=VOCABULARY, context_length=2048, chunk=32)


def spoilt(model: LanguageModel, places: np.ndarray):
    """An extent with the text's rows, wrong ones at these places; and the right ones."""
    extent = model.open(LAST + 8)
    model.prefill(extent, TEXT)
    right = read_rows(model, extent, 0, LAST).clone()
    wrong = right.clone()
    wrong[:, :, :, places] += 1
    model.arena.storage.write(extent.rows, wrong)
    return extent, right


def test_all_wrong_rows_computed_anew_are_right(model):
    places = np.array([3, 4, 5, 17, 40, 41, 89])
    extent, right = spoilt(model, places)
    rewrite(model, extent, places, [TEXT[i] for i in places])
    torch.testing.assert_close(read_rows(model, extent, 0, LAST), right, rtol=0, atol=1e-4)
    assert extent.total == LAST


@pytest.mark.slow
def test_the_forward_for_gpus_with_interpreted_kernels():
    pytest.importorskip("triton", reason="Triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("compiled there: pytest -m gpu")
    from graft.models.forward_graphed import GraphedForward
    from graft.models.forward_triton import TritonLayers

    forward = GraphedForward(TritonLayers(*read_llama(build("qwen2"))))
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=2048)
    extent = model.open(32)
    model.prefill(extent, TEXT[:16])
    right = read_rows(model, extent, 0, 16).clone()
    places = np.array([5, 6, 12])
    wrong = right.clone()
    wrong[:, :, :, places] += 1
    model.arena.storage.write(extent.rows, wrong)
    rewrite_first(model, extent, 5, TEXT[5:16], 1)
    close = {"rtol": 0, "atol": 1e-4}
    half = read_rows(model, extent, 0, 16)
    torch.testing.assert_close(half[:, :1], right[:, :1], **close)
    assert torch.equal(half[:, 1:], wrong[:, 1:])
    rewrite(model, extent, places, [TEXT[i] for i in places])
    torch.testing.assert_close(read_rows(model, extent, 0, 16), right, **close)


def test_rows_that_were_not_chosen_stay(model):
    extent, right = spoilt(model, np.arange(20, 60))
    chosen = np.arange(20, 60, 3)
    before = read_rows(model, extent, 0, LAST).clone()
    rewrite(model, extent, chosen, [TEXT[i] for i in chosen])
    after = read_rows(model, extent, 0, LAST)
    others = np.setdiff1d(np.arange(LAST), chosen)
    assert torch.equal(after[:, :, :, others], before[:, :, :, others])
    # The first layer of a token depends on nothing but itself.
    torch.testing.assert_close(after[:, 0, :, chosen], right[:, 0, :, chosen], rtol=0, atol=1e-4)
    assert not torch.allclose(after[:, -1, :, chosen], right[:, -1, :, chosen], atol=1e-4)


def test_positions_that_are_left_out_are_left_out_everywhere(model):
    tree = from_paths(5, [[3, 4, 5], [3, 6], [7]])
    results = []
    for each in (model, model_of(build("qwen2"), "lean")):
        extent = each.open(LAST + 8)
        each.prefill(extent, TEXT[:60])
        extent.skipped = 300
        first = each.prefill(extent, TEXT[60:])
        results.append([first, each.score([extent], [tree])[0]])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_first_layers_alone(model, layers):
    extent, right = spoilt(model, np.arange(10, LAST))
    before = read_rows(model, extent, 0, LAST).clone()
    rewrite_first(model, extent, 10, TEXT[10:], layers)
    after = read_rows(model, extent, 0, LAST)
    close = {"rtol": 0, "atol": 1e-4}
    torch.testing.assert_close(after[:, :layers], right[:, :layers], **close)
    assert torch.equal(after[:, layers:], before[:, layers:])


def test_on_the_cpu_rows_computed_anew_have_the_same_bits_behind_a_shared_prefix():
    model = model_of(build("llama"), "panels")
    prefix = model.open(512)
    model.prefill(prefix, text(300, seed=2))
    extent = model.open(128, prefix, 256)
    append_rows(model, extent, read_rows(model, prefix, 256, 300))
    model.prefill(extent, TEXT)
    right = read_rows(model, extent, 0, 300 + LAST).clone()
    places = 300 + np.arange(5, 60, 2)
    wrong = right.clone()
    wrong[:, :, :, places] += 1
    model.arena.storage.write(extent.rows, wrong)
    rewrite(model, extent, places, [TEXT[i - 300] for i in places])
    assert torch.equal(read_rows(model, extent, 0, 300 + LAST), right)
