"""Models whose positions are stretched: ours must agree with transformers' own, and nothing that
was kept of the unstretched model may be taken for theirs."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from test_load import save
from tiny_architectures import VOCABULARY, build, config_of

from graft.assemble.loading import rows_key_of
from graft.errors import InputError
from graft.home import home
from graft.models import step_costs
from graft.models.heads.config import head_config
from graft.models.heads.files import HEADS, write_head
from graft.models.heads.load import load_head
from graft.models.language_model import LanguageModel
from graft.models.load import build_forward, load_model, longest_context
from graft.models.rope import stretch
from graft.models.step_costs import StepCosts
from graft.tree.draft_tree import chain

OWN, WANTED = 512, 2048  # tokens
LONG = np.random.default_rng(0).integers(3, VOCABULARY, 700).tolist()  # past the model's own


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("llama"))


def yarn_of_transformers(folder: Path) -> torch.nn.Module:
    """The same weights with YaRN written into the config by hand, as model cards tell users to."""
    config = hf.AutoConfig.from_pretrained(folder)
    config.max_position_embeddings = WANTED
    config.rope_parameters = {
        **config.rope_parameters,
        "rope_type": "yarn",
        "factor": WANTED / OWN,
        "original_max_position_embeddings": OWN,
    }
    return hf.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def last_logits(model: LanguageModel, tokens: list[int]) -> torch.Tensor:
    extent = model.open(len(tokens) + 1)
    model.prefill(extent, tokens[:-1])
    return model.score([extent], [chain(tokens[-1:])])[0][0].cpu()


def test_a_stretched_model_computes_what_transformers_does(folder):
    loaded = load_model(str(folder), dtype="fp32", device="cpu", context_length=WANTED)
    with torch.no_grad():
        expected = yarn_of_transformers(folder)(torch.tensor([LONG])).logits[0, -1]
    found = last_logits(loaded.model, LONG)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    plain = last_logits(load_model(str(folder), dtype="fp32", device="cpu").model, LONG[:500])
    stretched = last_logits(loaded.model, LONG[:500])
    assert float((plain - stretched).abs().max()) > 1e-2  # or this test could not fail
    assert loaded.model.context_length == loaded.stretched == WANTED


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in ("llama", "qwen2", "qwen3") for kind in ("panels", "lean")),
        ("llama", "hook"),
        pytest.param("llama", "graphed", marks=pytest.mark.slow),  # interpreted: one will do
    ],
)
def test_every_forward_knows_of_it(name, kind):
    network = build(name)
    config = network.config
    stretch(config, WANTED, name)
    again = type(network)(config).eval()
    again.load_state_dict(network.state_dict())
    forward, built = build_forward(again, name=name, dtype=torch.float32, kind=kind)
    assert built == kind  # the probe did not fall back
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=WANTED)
    with torch.no_grad():
        expected = again(torch.tensor([LONG[:16]])).logits[0, -1]
    torch.testing.assert_close(last_logits(model, LONG[:16]), expected, rtol=0, atol=1e-3)


def test_attention_is_sharpened_as_yarn_says(folder):
    network = yarn_of_transformers(folder)
    config = hf.AutoConfig.from_pretrained(folder)
    stretch(config, WANTED, "llama")
    ours = type(network)(config).model.rotary_emb
    assert ours.attention_scaling == pytest.approx(0.1 * math.log(4) + 1)
    torch.testing.assert_close(ours.inv_freq, network.model.rotary_emb.inv_freq)


def test_a_yarn_model_is_stretched_from_what_it_was_trained_for():
    config = config_of("yarn-rope")
    config.max_position_embeddings = 256
    stretch(config, 1024, "yarn")
    assert config.rope_parameters["factor"] == 1024 / 64
    assert config.max_position_embeddings == 1024


@pytest.mark.parametrize("name", ["llama3-rope", "gemma3"])
def test_other_positions_are_refused_in_one_line(name):
    with pytest.raises(InputError, match=f"{name} cannot be stretched to 4096 tokens") as error:
        stretch(config_of(name), 4096, name)
    assert "\n" not in str(error.value)


def test_learned_positions_are_refused():
    with pytest.raises(InputError, match="no rotary positions; its context is at most 64"):
        stretch(hf.GPT2Config(n_positions=64), 128, "gpt2")


@pytest.mark.parametrize("tokens", [0, -1])
def test_no_context_is_refused_before_anything_is_read(tokens):
    with pytest.raises(InputError, match="from 1 on"):
        load_model("no such model", context_length=tokens)


def test_a_shorter_context_only_limits(folder):
    loaded = load_model(str(folder), dtype="fp32", device="cpu", context_length=128)
    assert (loaded.model.context_length, loaded.stretched) == (128, None)
    own = load_model(str(folder), dtype="fp32", device="cpu")
    torch.testing.assert_close(
        last_logits(loaded.model, LONG[:100]), last_logits(own.model, LONG[:100])
    )
    assert longest_context(hf.AutoConfig.from_pretrained(folder)) == OWN


def test_caches_of_the_unstretched_model_are_not_used(folder, monkeypatch):
    monkeypatch.setattr(step_costs, "measure", lambda model: StepCosts((0,), (1,), ((1.0,),)))
    loads = [
        load_model(str(folder), dtype="fp32", device="cpu", context_length=tokens)
        for tokens in (None, WANTED, 2 * WANTED, 128)
    ]
    own, *stretched, shorter = map(rows_key_of, loads)
    assert len({own, *stretched}) == 3
    assert shorter == own  # the rows of a shorter context are the same
    for each in loads:
        step_costs.costs_for(each.model, each.identity, "fp32", "cpu")
    assert len(list((home() / "costs").iterdir())) == len(loads)


@pytest.mark.parametrize("kind", ["eagle2", "longspec"])
def test_heads_turn_with_their_target(kind, folder, tmp_path):
    stretched = load_model(str(folder), dtype="fp32", device="cpu", context_length=WANTED)
    own = load_model(str(folder), dtype="fp32", device="cpu")
    config = hf.AutoConfig.from_pretrained(folder)
    write_head(tmp_path / "head", HEADS[kind](head_config(kind, own.checkpoint, config)))
    places = torch.arange(600)[None]
    turned, plain = (
        load_head(tmp_path / "head", each).head.rotary(places)[0][:, 0] for each in (stretched, own)
    )
    expected, _ = yarn_of_transformers(folder).model.rotary_emb(torch.empty(1), places)
    torch.testing.assert_close(turned, expected)
    assert not torch.allclose(plain, expected)
