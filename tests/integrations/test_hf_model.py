"""The caller's model: given back as it was, and always the one that is asked."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from hf_cases import SHAPES, assert_same, drafted, make
from hf_snapshot import snapshot
from tiny import VOCABULARY
from transformers import LogitsProcessor, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from graft.errors import UnsupportedModelError
from graft.integrations import hf
from graft.integrations.hf import engines
from graft.models import load

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def noisy(model):
    """A model with dropout in training, some of its weights frozen, one module not training."""
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.model.layers[0].requires_grad_(requires_grad=False)
    model.train()
    model.model.layers[1].mlp.eval()
    return model


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_the_model_is_restored(noisy, training):
    if not training:
        noisy.eval()
    with torch.no_grad():
        noisy(input_ids=torch.tensor([[5, 6, 7]]))
    before = snapshot(noisy)
    first = drafted(noisy, **SHAPES["ragged"], max_new_tokens=30, do_sample=False)
    assert snapshot(noisy) == before
    flags = [module.training for module in noisy.modules()]
    noisy.eval()
    assert (
        first.tolist()
        == noisy.generate(**SHAPES["ragged"], max_new_tokens=30, do_sample=False).tolist()
    )  # as in eval mode
    for module, flag in zip(noisy.modules(), flags, strict=True):
        module.training = flag
    noisy.eval()(input_ids=torch.tensor([[5, 6, 7]])).logits.sum().backward()


class Fails(LogitsProcessor, StoppingCriteria, BaseStreamer):
    """Raises the fifth time it is asked, whatever it is."""

    def __init__(self, error):
        self.calls, self.error = 0, error

    def __call__(self, input_ids, scores):
        self.put(None)
        return scores if scores is not None else torch.zeros(len(input_ids), dtype=torch.bool)

    def put(self, value):
        self.calls += 1
        if self.calls == 5:
            raise self.error

    def end(self):
        pass


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria", "streamer"])
def test_a_failing_callback_leaves_the_model_as_it_was(noisy, where, error):
    before, fails = snapshot(noisy), Fails(error)
    options = {where: fails if where == "streamer" else [fails]}
    with pytest.raises(type(error)):
        drafted(noisy, **SHAPES["one"], max_new_tokens=12, do_sample=False, **options)
    assert snapshot(noisy) == before
    noisy.eval()
    assert_same(noisy, **SHAPES["one"], max_new_tokens=12, do_sample=False)


def test_callbacks_may_use_the_model_themselves(model):
    class Looks(LogitsProcessor):
        def __call__(self, input_ids, scores):
            again = model(input_ids=input_ids).logits[:, -1]
            torch.testing.assert_close(again, scores, rtol=1e-4, atol=1e-4)
            return scores

    options = {**SHAPES["one"], "max_new_tokens": 20, "do_sample": False}
    assert_same(model, **options, logits_processor=[Looks()])


def _optimiser_step(model):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    optimiser.step()


def _swap_rows(model):
    weight = model.lm_head.weight.data
    weight[[40, 41]] = weight[[41, 40]]


def _adapter(model):
    class Adapted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 0.3 * x.mean(-1, keepdim=True)

    model.model.layers[0].mlp.down_proj.__class__ = Adapted


def _hook(model):
    model.model.layers[0].register_forward_hook(lambda _, __, output: output * 1.01)


CHANGES = {
    "through data": lambda model: model.get_input_embeddings().weight.data[40].add_(1),
    "one number": lambda model: model.lm_head.weight.data[40, 3].add_(2),
    "two rows swapped": _swap_rows,
    "in place": lambda model: model.model.norm.weight.detach().mul_(1.3),
    "training step": _optimiser_step,
    "new parameter": lambda model: setattr(
        model.lm_head, "weight", torch.nn.Parameter(model.lm_head.weight.detach().roll(1, 0))
    ),
    "other weights": lambda model: model.load_state_dict(
        {name: tensor * 1.1 for name, tensor in model.state_dict().items()}
    ),
    "more tokens": lambda model: model.resize_token_embeddings(VOCABULARY + 16),
    "adapter": _adapter,
    "hook": _hook,
    "config": lambda model: setattr(model.config, "name_or_path", "renamed"),
}


# Lean and panels notice changes by the same sums; the hook runs the model's own modules.
CASES = [("panels", change) for change in CHANGES]
CASES += [("lean", change) for change in ("training step", "other weights", "adapter")]
CASES += [("hook", change) for change in ("one number", "more tokens", "adapter", "config")]


@pytest.mark.parametrize(("kind", "change"), CASES)
def test_changed_weights_are_used(kind, change):
    model = make(kind)
    options = {**SHAPES["ragged"], "max_new_tokens": 12, "do_sample": False}
    assert_same(model, **options)
    CHANGES[change](model)
    assert_same(model, **options)


def test_an_unchanged_model_is_prepared_once(model, monkeypatch):
    built = []
    monkeypatch.setattr(
        engines, "build_forward", lambda *a, **k: built.append(1) or load.build_forward(*a, **k)
    )
    for _ in range(3):
        drafted(model, **SHAPES["one"], max_new_tokens=5)
    assert len(built) == 1
    hf.release(model)
    drafted(model, **SHAPES["one"], max_new_tokens=5)
    assert len(built) == 2


def test_another_dtype_is_prepared_again(model):
    drafted(model, **SHAPES["one"], max_new_tokens=5)
    model.to(torch.bfloat16)
    output = drafted(model, **SHAPES["one"], max_new_tokens=5)
    assert output.shape[1] == SHAPES["one"]["input_ids"].shape[1] + 5
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    model.to(torch.float64)
    with pytest.raises(UnsupportedModelError, match="float64"):
        drafted(model, **SHAPES["one"], max_new_tokens=5)


def test_a_quantised_model_gives_the_same_tokens_and_changed_weights_are_used():
    torchao = pytest.importorskip("torchao.quantization")
    model = make("panels")
    torchao.quantize_(model.model, torchao.Int8WeightOnlyConfig(version=2))
    options = {**SHAPES["ragged"], "max_new_tokens": 20, "do_sample": False}
    assert_same(model, **options)
    model.model.layers[0].mlp.down_proj.weight.scale.mul_(3)
    assert_same(model, **options)


def test_an_unused_model_is_freed(model):
    drafted(model, **SHAPES["one"], max_new_tokens=5)
    copied = copy.deepcopy(model)
    watch = weakref.ref(copied)
    drafted(copied, **SHAPES["one"], max_new_tokens=5)
    del copied
    gc.collect()
    assert watch() is None


def test_threads_may_share_a_model(model):
    expected = model.generate(**SHAPES["one"], max_new_tokens=30, do_sample=False).tolist()
    found = []

    def call():
        found.append(drafted(model, **SHAPES["one"], max_new_tokens=30, do_sample=False).tolist())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
