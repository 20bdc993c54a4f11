"""Transformers' modules as captured layers, their kernels interpreted: trees, replacements, what is
refused. Capturing itself needs a GPU: tests/gpu."""

import pytest
import torch
from daily import daily
from test_architectures import assert_tree_equals_paths, random_numbers
from tiny_architectures import HOOKED, MORE_HOOKED, VOCABULARY, WINDOW, build

from graft.models.forward_choice import build_forward
from graft.models.language_model import LanguageModel
from graft.tree.draft_tree import from_paths

pytest.importorskip("triton", reason="Triton is not installed")
from graft.models import forward_graphed  # noqa: E402
from graft.models.forward_graphed import GraphedForward  # noqa: E402

if torch.cuda.is_available():
    pytest.skip("compiled there: pytest -m gpu", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("one_thread", "small_buckets")
TREE = from_paths(5, [[3, 4, 5], [3, 6], [7]])


@pytest.fixture
def small_buckets(monkeypatch):
    """Interpreted kernels take long over padding."""
    monkeypatch.setattr(forward_graphed, "BUCKETS", (1, 2, 4, 8))
    monkeypatch.setattr(forward_graphed, "LARGE", 16)
    monkeypatch.setattr(forward_graphed, "TASKS", 4)
    monkeypatch.setattr(forward_graphed, "MIXED_TASKS", 8)
    monkeypatch.setattr(GraphedForward, "sizes", (1, 2, 4, 8, 12))


def captured(name: str) -> tuple[torch.nn.Module, LanguageModel]:
    network = build(name)
    forward, used = build_forward(network, name=name, kind="captured")
    assert used == "captured"
    return network, LanguageModel(forward, vocabulary=VOCABULARY, context_length=512)


ALL = [*HOOKED, *MORE_HOOKED]
FEW = ("gemma3", "gpt-oss", "glm4", "qwen3moe")


@pytest.mark.parametrize("name", daily(ALL, *FEW))
def test_tree_logits_equal_those_of_each_path(name):
    network, model = captured(name)
    for length in (3, 3 * WINDOW + 1):
        assert_tree_equals_paths(network, model, random_numbers(length, length), length)
