"""MTP layers in checkpoints: read in each layout, run as a plain version runs them, or refused."""

from itertools import product

import pytest
import torch
from daily import daily
from safetensors.torch import load_file, save_file
from tiny import save_tiny
from tiny_mtp import LAYOUTS, PREFIX, WEIGHTS, PlainLayer, save_mtp

import graft
from graft.errors import CheckpointError, InputError, UnsupportedModelError
from graft.models import forward_choice
from graft.models.heads.load import find_heads, load_head
from graft.models.heads.runner import Text
from graft.models.load import load_model, read_config
from graft.sampling import SamplingParams

TEXT = torch.randint(3, 120, (40,), generator=torch.Generator().manual_seed(5)).tolist()
PATHS = {(): 0, (7,): 0, (8,): 1, (8, 9): 0, (7, 10): 1, (7, 10, 11): 0}  # by their place
LEVELS = [([7, 8], [0, 0]), ([9, 10], [1, 0]), ([11], [1])]
SETTINGS = {
    "greedy": SamplingParams(max_tokens=40, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, seed=7),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture(scope="module")
def folder(layout, tmp_path_factory):
    return save_mtp(tmp_path_factory.mktemp("knows"), layout)


def load(folder, **options):
    return graft.load(str(folder), dtype="fp32", device="cpu", **options)


@pytest.fixture(scope="module")
def engine(folder):
    return load(folder, draft="mtp")


CASES = [*product(["mtp", "head", "auto", "casd", "rasd-pld", "mtp+copy"], SETTINGS)]


@pytest.mark.parametrize(
    ("draft", "kind"), daily(CASES, ("mtp", "greedy"), ("mtp", "sampled"), ("auto", "greedy"))
)
def test_an_mtp_layer_never_changes_the_output(engine, draft, kind):
    prompt, params = "the end and the answer", SETTINGS[kind]
    plain = engine.generate(prompt, params, draft="plain")
    result = engine.generate(prompt, params, draft=draft)
    assert result.token_ids == plain.token_ids
    assert result.text == plain.text
    if draft == "mtp":
        found, all_drafted = result.stats.accepted_by_source, result.stats.num_draft_tokens
        assert 3 <= found["head"] < all_drafted


@torch.no_grad()
def test_drafts_are_those_of_the_plain_layer(layout, tmp_path, monkeypatch):
    """Random weights; features of the target up to the last token, then the layer's own."""
    monkeypatch.setattr(forward_choice, "panels_are_faster", lambda config, dtype: True)
    folder = save_mtp(tmp_path, layout, knows=False)
    target = load_model(str(folder), dtype="fp32", device="cpu")
    assert (target.forward_name == "panels") == (layout != "qwen3.5")
    runner, model = load_head(folder, target), target.model
    extent, memory = model.open(len(TEXT)), runner.open()
    model.prefill(extent, TEXT[:-1])
    features = model.features(range(len(TEXT) - 1), [-1])
    for part in (slice(0, 25), slice(25, len(TEXT) - 1)):
        runner.read([Text(memory, TEXT[1:][part], features[part])])
    working = runner.round([memory], [extent])
    levels = [working.root()[0]]
    for tokens, above in LEVELS:
        levels.append(working.level(torch.tensor([tokens]), torch.tensor([above]))[0])
    config = read_config(target.checkpoint).get_text_config()
    plain = PlainLayer(layout, folder, config)
    for path, place in PATHS.items():
        tokens = [*TEXT[1:], *path]
        embeddings, hidden = model.forward.embed(torch.tensor(tokens)), features
        for _ in path:  # its outputs take the place of the target's hidden states
            own = plain.outputs(embeddings[: len(hidden)], hidden)
            hidden = torch.cat([hidden, own[-1:]])
        expected = plain.outputs(embeddings, hidden)[-1]
        # packed weights are rounded to 16 bits
        tolerance = 0.05 if target.forward_name == "panels" else 1e-3
        torch.testing.assert_close(
            levels[len(path)][place], expected, atol=tolerance, rtol=tolerance
        )


def changed(folder, layout, change):
    """The tensors of a new checkpoint, changed; `change` gets those of the layer."""
    save_mtp(folder, layout)
    weights = load_file(folder / WEIGHTS)
    own = {n: weights.pop(n) for n in list(weights) if n.startswith(PREFIX[layout])}
    weights |= change({name.removeprefix(PREFIX[layout]): each for name, each in own.items()})
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    return folder


def prefixed(layout, more):
    return lambda own: {PREFIX[layout] + name: each for name, each in (own | more).items()}


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"mlp.experts.0.up_proj.weight": torch.zeros(2, 2)}, "experts"),
        ({"mlp.gate.weight": torch.zeros(2, 2)}, "experts"),
        ({"self_attn.kv_a_proj_with_mqa.weight": torch.zeros(2, 2)}, "latent attention"),
        ({"eh_proj.weight_scale": torch.zeros(2)}, "quantised weights"),
        ({"mlp.up_proj.weight": torch.zeros(2, 2, dtype=torch.int8)}, "quantised weights"),
    ],
)
def test_layers_of_other_kinds_are_refused_by_name(tmp_path, more, what):
    folder = changed(tmp_path, "extra layer", prefixed("extra layer", more))
    with pytest.raises(UnsupportedModelError, match=f"has {what}.*--draft-model") as refused:
        load(folder, draft="mtp")
    assert "\n" not in str(refused.value)
    assert "mtp" not in load(folder).presets


def test_tensors_that_do_not_fit_are_refused(tmp_path):
    more = {"post_self_attn_layernorm.weight": torch.zeros(2)}
    folder = changed(tmp_path, "extra layer", prefixed("extra layer", more))
    with pytest.raises(CheckpointError, match="unknown.*post_self_attn_layernorm"):
        load(folder, draft="mtp")


def test_a_checkpoint_without_mtp_layers_is_refused_in_one_line(tmp_path):
    save_tiny(tmp_path)
    with pytest.raises(CheckpointError, match="has no MTP layers; name a draft model") as refused:
        load(tmp_path, draft="mtp+copy")
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="draft 'mtp' needs a model with MTP layers"):
        load(tmp_path).generate("the end", draft="mtp")
    with pytest.raises(InputError, match="draft 'mtp' needs a model with MTP layers"):
        graft.load("no-such-model", draft="mtp", head=None)


def test_the_first_of_several_layers_drafts(tmp_path):
    second = {"layers.1.input_layernorm.weight": torch.zeros(2)}
    folder = changed(tmp_path, "qwen3.5", prefixed("qwen3.5", second))
    assert "mtp" in load(folder, draft="mtp").presets


def test_a_checkpoints_own_layer_can_be_named_or_disabled(tmp_path):
    target = load_model(str(save_mtp(tmp_path, "mimo")), dtype="fp32", device="cpu")
    assert list(find_heads("auto", target)) == list(find_heads(str(tmp_path), target)) == ["mtp"]
    assert find_heads(None, target) == {}
