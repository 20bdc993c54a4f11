"""Transformers' modules as captured layers, their kernels interpreted: trees, replacements, what is
refused. Capturing itself needs a GPU: tests/gpu."""

import numpy as np
import pytest
import torch
from daily import daily
from test_architectures import assert_tree_equals_paths, random_numbers
from tiny_architectures import HOOKED, MORE_HOOKED, RECURRENT, VOCABULARY, WINDOW, build

from graft.errors import UnsupportedModelError
from graft.models import forward_choice
from graft.models.forward_choice import build_forward
from graft.models.language_model import LanguageModel
from graft.models.probe import reference_logits
from graft.tree.draft_tree import chain, from_paths, root_only

pytest.importorskip("triton", reason="Triton is not installed")
from graft.kernels import recurrent_triton  # noqa: E402
from graft.models import replacements  # noqa: E402
from graft.models.forward_graphed import GraphedForward  # noqa: E402
from graft.models.module_layers import ModuleLayers  # noqa: E402

if torch.cuda.is_available():
    pytest.skip("compiled there: pytest -m gpu", allow_module_level=True)

pytestmark = [
    pytest.mark.usefixtures("one_thread", "small_buckets"),
    pytest.mark.filterwarnings("ignore:.*encountered in"),  # padding may hold any number
]
TREE = from_paths(5, [[3, 4, 5], [3, 6], [7]])


LAUNCHED = ("mamba", "jamba")  # Mamba 1
CAPTURED = [name for name in RECURRENT if name not in LAUNCHED]


def captured(name: str, *, owned: bool = True) -> tuple[torch.nn.Module, LanguageModel]:
    """A network, and another one of the same weights behind captured layers."""
    network = build(name)
    forward, used = build_forward(
        build(name), name=name, kind="captured", dtype=torch.float32 if owned else None
    )
    assert used == "captured"
    return network, LanguageModel(forward, vocabulary=VOCABULARY, context_length=512)


ALL = [*HOOKED, *MORE_HOOKED]
FEW = ("phi3",)  # the others are in the lossless test


@pytest.mark.parametrize("name", daily(ALL, *FEW))
def test_tree_logits_equal_those_of_each_path(name):
    network, model = captured(name)
    length = 3 * WINDOW + 1
    assert_tree_equals_paths(network, model, random_numbers(length, length), length)


ROUTED = {"choose_experts", "expert_product", "weighted_sum"}
CALLS = {  # of Triton kernels in a layer, and of torch's functions that launch one
    "gemma3": {"norm", "rotate", "gated_gelu"},
    "qwen3moe": {"norm", "rotate", *ROUTED},
    "gpt-oss": {"norm", "rotate", *ROUTED},
    "cohere": set(),
    "mixtral": {"norm", "rotate", *ROUTED},
    "phi3": {"norm", "rotate"},
}


@pytest.mark.parametrize("name", daily(CALLS, "gemma3", "gpt-oss", "cohere", "phi3"))
def test_kernels_replace_what_they_compute(name, monkeypatch):
    """Cohere has a layer norm and turns neighbours: both stay as they are."""
    called = set()
    for each in {*CALLS["gemma3"], *CALLS["qwen3moe"]}:
        own = getattr(replacements, each)

        def noting(*args, own=own, each=each, **named):
            called.add(each)
            return own(*args, **named)

        monkeypatch.setattr(replacements, each, noting)
    layers = ModuleLayers(build(name), owned=True)
    model = LanguageModel(GraphedForward(layers), vocabulary=VOCABULARY, context_length=64)
    model.score([model.open(8)], [root_only(3)])  # rotations are tried
    called.clear()
    model.score([model.open(8)], [root_only(3)])
    assert called == CALLS[name]


@pytest.mark.slow
def test_a_network_of_the_caller_keeps_its_functions_and_its_memory():
    network = build("phi3")
    text = random_numbers(9, 1)
    before = reference_logits(network, [text])[0]
    places = {name: each.data_ptr() for name, each in network.named_parameters()}
    forward, _ = build_forward(network, name="phi3", kind="captured")
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=64)
    model.prefill(model.open(16), text)
    assert places == {name: each.data_ptr() for name, each in network.named_parameters()}
    assert not any("forward" in vars(module) for module in network.modules())
    torch.testing.assert_close(reference_logits(network, [text])[0], before, rtol=0, atol=0)


@pytest.mark.slow
def test_queries_and_features_are_those_of_transformers_modules():
    network, model = captured("phi3")
    hooked, _ = build_forward(network, name="phi3", kind="hook")
    other = LanguageModel(hooked, vocabulary=VOCABULARY, context_length=512)
    found = []
    for each in (model, other):
        each.forward.feature_layers = frozenset({1, -1})
        extent = each.open(32)
        each.prefill(extent, random_numbers(5, 2))
        each.score([extent], [TREE])
        nodes = np.array([0, 2, 3])
        found.append([each.forward.features(nodes, (1, -1)), each.queries(extent, [4, 5, 6])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", daily(CAPTURED, "lfm2"))
def test_recurrent_layers_follow_trees(name):
    """Delta nets amplify roundings, by transformers' own scans too."""
    network, model = captured(name)
    length = 3 * WINDOW + 1
    assert_tree_equals_paths(network, model, random_numbers(length, length), length, 1e-4)


@pytest.mark.parametrize("name", daily(CAPTURED, "lfm2"))
def test_recurrent_layers_in_steps_of_many_kinds_are_those_of_the_hook(name):
    """Trees beside each other, committed paths, a prompt beside a draft, a copy."""
    results = []
    for kind in ("captured", "hook"):
        forward, used = build_forward(build(name), name=name, kind=kind)
        assert used == kind
        model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=512)
        first, second = model.open(64), model.open(64)
        prompt = chain(random_numbers(9, 2))
        logits = [model.prefill(first, random_numbers(5, 1))[None].clone()]
        logits.append(model.score_all([first, second], [TREE, root_only(3)])[0].clone())
        model.commit_all([(first, [0, 1, 4]), (second, [0])])
        both = model.score_all([second, first], [prompt, TREE], last_only=[True, False])
        logits.append(both[0].clone())
        model.commit(second, list(range(len(prompt))))
        other = model.fork(second, 10, 8)
        logits.append(model.score_all([other, second], [root_only(7), TREE])[0].clone())
        results.append(torch.cat(logits))
    scale = float(results[1].abs().max())
    torch.testing.assert_close(*results, rtol=0, atol=1e-4 * max(scale, 1))


def test_a_step_ahead_can_be_dropped():
    """Its states are, and the one it continued is still there."""
    found = []
    _, model = captured("lfm2")
    for ahead in (True, False):
        extent = model.open(64)
        model.prefill(extent, random_numbers(5, 1))
        for token in (3, 4):
            model.score([extent], [root_only(token)])
            if ahead:
                model.score_ahead([extent], torch.tensor([9]))
            model.commit(extent, [0])
        found.append(model.score([extent], [TREE])[0].clone())
    assert torch.equal(*found)


def test_slots_for_states_are_reserved_and_graphs_are_dropped_when_they_move():
    _, model = captured("lfm2")
    forward, storage = model.forward, model.forward.storage
    extent = model.open(64)
    pool = storage.states[0]
    model.prefill(extent, random_numbers(9, 1))
    for _ in range(3):
        model.score([extent], [TREE])
    assert storage.states[0] is pool
    prepared = {**forward._prepared}
    assert prepared
    storage.reserve(2 * len(pool))
    model.score([extent], [TREE])
    assert not prepared.items() & forward._prepared.items()


@pytest.mark.parametrize("name", daily(LAUNCHED, "mamba"))
def test_layers_without_a_kernel_are_not_captured_and_it_is_said(name, caplog):
    assert build_forward(build(name), name="odd", kind="captured")[1] == "hook"
    assert "odd: steps are launched kernel by kernel" in caplog.text
    assert "its recurrent layers (" in caplog.text


def test_a_kernel_that_cannot_be_compiled_is_no_reason_to_fail(caplog, monkeypatch):
    class OutOfResources(Exception):
        """As Triton's: no RuntimeError."""

    def convolve(*_, **__):
        raise OutOfResources("shared memory")

    monkeypatch.setattr(recurrent_triton, "convolve", convolve)
    forward, used = build_forward(build("lfm2"), name="lfm2", kind="captured")
    assert used == "hook"
    assert "OutOfResources: shared memory" in caplog.text
    assert forward.storage.states


@pytest.mark.slow
def test_without_one_order_of_summation_it_says_so(caplog, monkeypatch):
    def refuse(*_, **__):
        raise UnsupportedModelError("not here")

    def built():
        return build_forward(build("phi3"), name="odd", kind="captured", dtype=torch.float16)[0]

    monkeypatch.setattr(forward_choice, "check_invariant", lambda *_, **__: None)
    assert built().exact
    assert not caplog.text
    monkeypatch.setattr(forward_choice, "check_invariant", refuse)
    assert not built().exact
    assert "odd: in 16 bits drafting may change a token" in caplog.text
