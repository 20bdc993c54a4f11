"""Draft heads on disk: what is written is read, others' layouts too, and misfits are one line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_network
from transformers import Qwen2Config

from graft.errors import CheckpointError
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.heads.config import head_config
from graft.models.heads.files import HEADS, read_head, write_head
from graft.train.settings import KINDS

CHECKPOINT = Checkpoint("tiny", Path("nowhere"), "0123456789abcdef")
TARGET = tiny_network().config


def made(kind, *, drafted=40, **more):
    torch.manual_seed(3)
    head = HEADS[kind](head_config(kind, CHECKPOINT, TARGET, draft_vocabulary=drafted, **more))
    head.d2t.copy_(torch.randperm(TARGET.vocab_size)[:drafted])
    return head


def rewritten(folder, change):
    """The same folder with changed tensors."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("eagle2", {}),
        ("eagle3", {}),
        ("eagle3", {"own_output": False, "inner": 96, "norm_before_residual": True}),
        ("eagle3", {"feature_layers": (0, 1), "kv_heads": 4}),
        ("longspec", {}),
        ("longspec", {"final_norm": False, "window": 64}),
        ("longspec", {"cross_layers": 2}),
    ],
)
def test_a_written_head_is_read_as_it_was(tmp_path, kind, more):
    head = made(kind, **more)
    write_head(tmp_path / "head", head, dtype="fp32", card="# A head", about={"steps": 3})
    read = read_head(tmp_path / "head", CHECKPOINT, TARGET)
    assert read.config == head.config
    assert read.state_dict().keys() == head.state_dict().keys()
    for name, value in head.state_dict().items():
        assert torch.equal(read.state_dict()[name], value), name
    assert (tmp_path / "head" / "README.md").read_text() == "# A head"
    assert json.loads((tmp_path / "head" / "config.json").read_text())["graft"]["steps"] == 3


def test_halves_are_halves(tmp_path):
    write_head(tmp_path / "head", made("eagle2"))
    read = read_head(tmp_path / "head")
    assert read.fc.weight.dtype == torch.float16
    assert read.d2t.dtype == torch.int64


@pytest.mark.parametrize("kind", KINDS)
def test_eight_bits_round_every_output_channel_by_its_own_scale(tmp_path, kind):
    head = made(kind)
    for weight in head.parameters():
        if weight.dim() == 2:
            weight.data[0] *= 100
    write_head(tmp_path / "head", head, dtype="int8")
    write_head(tmp_path / "halves", head, dtype="fp16")
    read = dict(read_head(tmp_path / "head", CHECKPOINT, TARGET).named_parameters())
    for name, value in head.named_parameters():
        largest = value.abs().amax(-1, keepdim=True) if value.dim() == 2 else 0.0
        assert ((read[name] - value).abs() <= largest / 230 + 1e-6).all(), name
    sizes = [(tmp_path / each / "model.safetensors").stat().st_size for each in ("head", "halves")]
    assert sizes[0] < 0.6 * sizes[1]


def test_a_scale_without_its_matrix_is_refused(tmp_path):
    write_head(tmp_path / "head", made("eagle2"), dtype="int8")
    rewritten(tmp_path / "head", lambda weights: weights.pop("fusion_fc.weight"))
    with pytest.raises(CheckpointError, match="fusion_fc.weight_scale does not scale the rows"):
        read_head(tmp_path / "head")


def test_files_are_in_the_layout_of_speculators(tmp_path):
    head = made("eagle2")
    write_head(tmp_path / "head", head)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle"
    assert config["transformer_layer_config"]["hidden_size"] == TARGET.hidden_size
    assert config["speculators_config"]["verifier"]["name_or_path"] == "tiny"
    weights = load_file(tmp_path / "head" / "model.safetensors")
    assert {"fusion_fc.weight", "transformer.self_attn.q_proj.weight"} <= weights.keys()
    assert not any("embed_tokens" in name or "lm_head" in name for name in weights)
    assert torch.equal(weights["d2t"] + torch.arange(40), head.d2t)
    assert weights["t2d"].nonzero()[:, 0].tolist() == sorted(head.d2t.tolist())


# The tensors of published EAGLE-3 heads beside d2t and t2d, as yuhuili/EAGLE3-* have them;
# speculators writes layers.0 for midlayer.
PUBLISHED = {
    "fc.weight": "fc.weight",
    "midlayer.hidden_norm.weight": "layer.hidden_norm.weight",
    "midlayer.input_layernorm.weight": "layer.input_layernorm.weight",
    "midlayer.mlp.down_proj.weight": "layer.mlp.down_proj.weight",
    "midlayer.mlp.gate_proj.weight": "layer.mlp.gate_proj.weight",
    "midlayer.mlp.up_proj.weight": "layer.mlp.up_proj.weight",
    "midlayer.post_attention_layernorm.weight": "layer.post_attention_layernorm.weight",
    "midlayer.self_attn.k_proj.weight": "layer.self_attn.k_proj.weight",
    "midlayer.self_attn.o_proj.weight": "layer.self_attn.o_proj.weight",
    "midlayer.self_attn.q_proj.weight": "layer.self_attn.q_proj.weight",
    "midlayer.self_attn.v_proj.weight": "layer.self_attn.v_proj.weight",
    "norm.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
}
BIG = tiny_network(layers=12).config
AUTHORS = BIG.to_diff_dict() | {"num_hidden_layers": 1, "draft_vocab_size": 40}
LAYOUTS = {
    "authors": (AUTHORS, "midlayer", (2, 6, 9)),
    "specforge": (
        AUTHORS
        | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [1, 4, 8],
                "use_aux_hidden_state": True,
            },
        },
        "midlayer",
        (2, 5, 9),
    ),
    "speculators": (
        {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": 40,
            "norm_before_residual": True,
            "eagle_aux_hidden_state_layer_ids": [1, 6, 10],
            "target_hidden_size": None,
            "transformer_layer_config": AUTHORS,
        },
        "layers.0",
        (1, 6, 10),
    ),
    "speculators without layers": (
        {"speculators_model_type": "eagle3", "transformer_layer_config": AUTHORS},
        "layers.0",
        (2, 6, 9),
    ),
}


def published_eagle3(folder, layout, *, pickled=False):
    """A folder as others publish it, and the head in it."""
    content, layer, layers = LAYOUTS[layout]
    torch.manual_seed(3)
    head = HEADS["eagle3"](
        head_config("eagle3", CHECKPOINT, BIG, draft_vocabulary=40, feature_layers=layers)
    )
    ids = torch.randperm(BIG.vocab_size)[:40].sort().values
    head.d2t.copy_(ids)
    own = head.state_dict()
    weights = {name.replace("midlayer", layer): own[ours] for name, ours in PUBLISHED.items()}
    weights |= {"d2t": ids - torch.arange(40), "t2d": torch.isin(torch.arange(128), ids)}
    weights["embed_tokens.weight"] = torch.zeros(BIG.vocab_size, BIG.hidden_size)
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(content))
    return head


@pytest.mark.parametrize(
    ("layout", "pickled"), [*((each, False) for each in LAYOUTS), ("authors", True)]
)
def test_published_layouts_of_eagle3_are_read(tmp_path, layout, pickled):
    head = published_eagle3(tmp_path, layout, pickled=pickled)
    read = read_head(tmp_path, CHECKPOINT, BIG)
    assert read.config.kind == "eagle3"
    assert read.config.feature_layers == LAYOUTS[layout][2]
    assert read.config.own_output
    assert read.config.norm_before_residual == (layout == "speculators")
    for name, value in head.state_dict().items():
        assert torch.equal(read.state_dict()[name], value), name


def test_an_eagle3_head_of_layers_that_the_target_lacks_is_refused(tmp_path):
    published_eagle3(tmp_path, "specforge")
    with pytest.raises(CheckpointError, match="reads the input of layer 9, tiny has 2 layers"):
        read_head(tmp_path, CHECKPOINT, TARGET)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"norm_before_fc": True}, "with extra norms"),
        ({"target_hidden_size": 128}, "with another hidden size than its target"),
        ({"embed_requires_grad": True}, "with an embedding of its own"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "with features of one layer"),
        ({"parallel_drafting": True}, "with parallel drafting"),
    ],
)
def test_other_variants_of_eagle3_are_refused(tmp_path, change, line):
    published_eagle3(tmp_path, "authors")
    (tmp_path / "config.json").write_text(json.dumps(AUTHORS | change))
    with pytest.raises(CheckpointError, match=f"{line}, which is not supported"):
        read_head(tmp_path)


def test_eagle3_heads_of_several_layers_are_refused(tmp_path):
    published_eagle3(tmp_path, "speculators")
    more = {"layers.1.mlp.up_proj.weight": torch.ones(128, 64)}
    rewritten(tmp_path, lambda weights: weights.update(more))
    with pytest.raises(CheckpointError, match=r"unknown \['layers.1.mlp.up_proj.weight'\]"):
        read_head(tmp_path)


@pytest.mark.parametrize("pickled", [False, True])
def test_eagles_own_layout_is_read(tmp_path, pickled):
    head = made("eagle2", drafted=TARGET.vocab_size, fusion_bias=True)
    names = {"fc": "fc", "layer": "layers.0"}
    weights = {
        f"{names[name.partition('.')[0]]}.{name.partition('.')[2]}": value.detach()
        for name, value in head.named_parameters()
    }
    weights["embed_tokens.weight"] = torch.zeros(TARGET.vocab_size, TARGET.hidden_size)
    if pickled:
        torch.save(weights, tmp_path / "pytorch_model.bin")
    else:
        save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(TARGET.to_diff_dict() | {"bias": True}))
    read = read_head(tmp_path, CHECKPOINT, TARGET)
    assert torch.equal(read.fc.bias, head.fc.bias)
    assert torch.equal(read.layer.mlp.up_proj.weight, head.layer.mlp.up_proj.weight)
    assert read.d2t.tolist() == list(range(TARGET.vocab_size))


@pytest.mark.parametrize(
    ("kind", "other", "line"),
    [
        ("eagle2", {"hidden": 128}, "its hidden is 64, that of tiny is 128"),
        ("longspec", {"kv_heads": 4}, "its kv_heads is 2, that of tiny is 4"),
        ("eagle2", {"vocab": 200}, "for a vocabulary of 128, tiny has 200"),
    ],
)
def test_a_head_of_other_sizes_is_refused(tmp_path, kind, other, line):
    write_head(tmp_path / "head", made(kind))
    with pytest.raises(CheckpointError, match=line):
        read_head(tmp_path / "head", CHECKPOINT, tiny_network(**other).config)


def changed(folder, change):
    """The same folder with another `graft` part of its config."""
    file = folder / "config.json"
    content = json.loads(file.read_text())
    change(content["graft"])
    file.write_text(json.dumps(content))


def test_a_head_attends_to_one_layer_by_default(tmp_path):
    head = made("longspec")
    write_head(tmp_path / "head", head, dtype="fp32")
    changed(tmp_path / "head", lambda own: own.pop("cross_layers"))
    assert read_head(tmp_path / "head", CHECKPOINT, TARGET).config == head.config


@pytest.mark.parametrize("layers", [0, -1, 1.5, "two", True, None])
def test_a_number_of_layers_that_is_none_is_refused(tmp_path, layers):
    write_head(tmp_path / "head", made("longspec"))
    changed(tmp_path / "head", lambda own: own.update(cross_layers=layers))
    with pytest.raises(CheckpointError, match="cross_layers must be 1 or more") as caught:
        read_head(tmp_path / "head")
    assert "\n" not in str(caught.value)


def test_a_head_with_more_cross_layers_than_the_target_is_refused(tmp_path):
    write_head(tmp_path / "head", made("longspec", cross_layers=3))
    with pytest.raises(CheckpointError, match="attends to 3 layers, tiny has 2"):
        read_head(tmp_path / "head", CHECKPOINT, TARGET)


def test_weights_of_fewer_layers_than_the_config_says_are_refused(tmp_path):
    write_head(tmp_path / "head", made("longspec"))
    changed(tmp_path / "head", lambda own: own.update(cross_layers=2))
    with pytest.raises(CheckpointError, match=r"cross_attn.q_proj.weight is \[64, 64\]"):
        read_head(tmp_path / "head")


def test_a_missing_tensor_is_named(tmp_path):
    write_head(tmp_path / "head", made("longspec"))
    rewritten(tmp_path / "head", lambda weights: weights.pop("cross_attn.q_proj.weight"))
    with pytest.raises(CheckpointError, match=r"missing \['cross_attn.q_proj.weight'\]"):
        read_head(tmp_path / "head")


def test_a_tensor_of_another_shape_is_named(tmp_path):
    write_head(tmp_path / "head", made("eagle2"))
    rewritten(
        tmp_path / "head", lambda weights: weights.update({"fusion_fc.weight": torch.ones(3)})
    )
    with pytest.raises(CheckpointError, match=r"fc.weight is \[3\]"):
        read_head(tmp_path / "head")


@pytest.mark.parametrize(
    ("offsets", "line"), [([0, 0, 500], "outside the vocabulary"), ([0, -1, 0], "an id twice")]
)
def test_a_wrong_draft_vocabulary_is_refused(tmp_path, offsets, line):
    write_head(tmp_path / "head", made("eagle2", drafted=3))
    rewritten(tmp_path / "head", lambda weights: weights.update(d2t=torch.tensor(offsets)))
    with pytest.raises(CheckpointError, match=line):
        read_head(tmp_path / "head")


@pytest.mark.parametrize(
    "change",
    [
        {"speculators_model_type": "eagle3"},
        {"speculators_model_type": "medusa"},
        {"speculators_model_type": "peagle"},
        {"layernorms": True},
        {"transformer_layer_config": {"hidden_size": "many"}},
    ],
)
def test_heads_of_other_kinds_are_refused(tmp_path, change):
    write_head(tmp_path / "head", made("eagle2"))
    file = tmp_path / "head" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError) as caught:
        read_head(tmp_path / "head")
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_head_is_refused_in_one_line(tmp_path):
    with pytest.raises(CheckpointError, match="not a folder"):
        read_head(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_head(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no model.safetensors"):
        read_head(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    with pytest.raises(CheckpointError, match="truncated"):
        read_head(tmp_path)


@pytest.mark.parametrize(
    "more",
    [
        {"inner": 1408, "draft_vocabulary": 16384},
        {"inner": 6144, "draft_vocabulary": 32768, "own_output": False},
    ],
)
def test_an_eagle3_head_for_a_model_of_1_5b_takes_at_most_48_mb(more):
    """The sizes of Qwen2.5-Coder-1.5B."""
    target = Qwen2Config(
        hidden_size=1536, num_attention_heads=12, num_key_value_heads=2, num_hidden_layers=28,
        intermediate_size=8960, vocab_size=151936,
    )  # fmt: skip
    config = head_config("eagle3", CHECKPOINT, target, **more)
    assert config.feature_layers == (2, 14, 25)
    with torch.device("meta"):
        head = HEADS["eagle3"](config)
    matrices = sum(4 * len(p) + p.numel() for p in head.parameters() if p.dim() == 2)
    tables = 8 * config.draft_vocabulary + config.vocabulary
    assert matrices + tables < 47.9e6
