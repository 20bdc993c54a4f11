"""From a folder on disk to a model that scores trees, and what is said when that fails."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_architectures import VOCABULARY, build, config_of
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from graft.assemble import loading
from graft.errors import CheckpointError, GraftError, InputError, UnsupportedModelError
from graft.models import forward_choice
from graft.models.gpu import SHARE, hold_rows
from graft.models.language_model import LanguageModel
from graft.models.llama_shape import read_llama
from graft.models.load import LoadedModel, load_model, longest_context
from graft.models.probe import reference_logits
from graft.tree.draft_tree import from_paths

PROMPT = np.random.default_rng(0).integers(3, VOCABULARY, 40).tolist()


def save(folder: Path, name: str = "llama") -> Path:
    """A whole checkpoint: config, weights, generation settings and a tokenizer of whole words."""
    network = build(name)
    network.generation_config.eos_token_id = [2, 5]
    network.save_pretrained(folder)
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="w0", eos_token="w2"
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def broken(folder, tmp_path) -> Path:
    """A copy of the checkpoint for a test to damage."""
    copied = tmp_path / "broken"
    copied.mkdir()
    for file in folder.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    return copied


def logits_of(loaded: LoadedModel) -> torch.Tensor:
    """Of a prompt and a small tree."""
    extent = loaded.model.open(64)
    last = loaded.model.prefill(extent, PROMPT)
    tree = from_paths(7, [[8, 9], [10], [8, 11]])
    return torch.cat([last[None], loaded.model.score([extent], [tree])[0]])


def one_line(error: pytest.ExceptionInfo) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def test_a_saved_model_scores_as_it_did_in_memory(folder):
    loaded = load_model(str(folder), dtype="fp32", device="cpu")
    reference = reference_logits(build("llama"), [[*PROMPT, 7, 8, 11]])[0]
    torch.testing.assert_close(logits_of(loaded)[:2], reference[[39, 40]], rtol=0, atol=1e-4)
    assert (loaded.dtype, loaded.device) == ("fp32", "cpu")
    assert loaded.forward_name in ("panels", "lean")
    assert loaded.model.vocabulary == VOCABULARY
    assert loaded.model.context_length == 512
    assert loaded.tokenizer.encode("w7 w9") == [7, 9]
    assert loaded.checkpoint.folder == folder


def test_all_end_tokens_are_found(folder):
    assert load_model(str(folder), dtype="fp32").eos_ids == {2, 5}


@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 0.05), ("fp16", 0.01)])
def test_sixteen_bits_stay_near_thirty_two(folder, dtype, tolerance):
    exact = logits_of(load_model(str(folder), dtype="fp32"))
    loaded = load_model(str(folder), dtype=dtype)
    rounded = logits_of(loaded)
    assert loaded.dtype == dtype
    assert rounded.dtype == torch.float32
    assert 0 < float((rounded - exact).abs().max()) < tolerance * float(exact.abs().max())


def test_auto_chooses_a_dtype_and_a_device(folder):
    loaded = load_model(str(folder))
    assert loaded.dtype in ("fp32", "bf16")
    assert loaded.device == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "int3"}, "unknown dtype 'int3'; choose one of auto, fp32, bf16, fp16, int8"),
        ({"dtype": "float32"}, "unknown dtype"),
        ({"dtype": ""}, "unknown dtype"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "meta"}, "device 'meta' is not supported"),
        ({"device": "cuda:99"}, "CUDA device|cuda:99"),
        ({"device": ""}, "unknown device"),
        ({"device": "cpu:x"}, "unknown device"),
    ],
)
def test_unknown_options_are_refused_before_anything_is_read(options, says):
    with pytest.raises(InputError, match=says) as error:
        load_model("no such model", **options)
    one_line(error)


def weights_of(folder: Path) -> Path:
    return folder / "model.safetensors"


def cut_short(folder: Path) -> None:
    content = weights_of(folder).read_bytes()
    weights_of(folder).write_bytes(content[: len(content) // 2])


def scribble_over_header(folder: Path) -> None:
    content = bytearray(weights_of(folder).read_bytes())
    content[8:40] = b"x" * 32
    weights_of(folder).write_bytes(content)


def empty_weights(folder: Path) -> None:
    weights_of(folder).write_bytes(b"")


def remove_weights(folder: Path) -> None:
    weights_of(folder).unlink()


def another_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))


def another_depth(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))


def config_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def unknown_architecture(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "perpetuum-mobile"}))


def tokenizer_is_not_json(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def tokenizer_of_another_kind(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


DAMAGES = [
    cut_short, scribble_over_header, empty_weights, remove_weights, another_shape, another_depth,
    config_is_not_json, unknown_architecture, tokenizer_is_not_json, tokenizer_of_another_kind,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_one_line(broken, damage):
    damage(broken)
    with pytest.raises(CheckpointError) as error:
        load_model(str(broken), dtype="fp32", device="cpu")
    assert "broken" in one_line(error)


def test_a_model_that_cannot_be_scored_as_a_tree_is_refused_by_name(tmp_path):
    save(tmp_path / "nemotron", "nemotron")
    with pytest.raises(UnsupportedModelError, match="nemotron") as error:
        load_model(str(tmp_path / "nemotron"), dtype="fp32", device="cpu")
    one_line(error)


@pytest.mark.parametrize(
    ("name", "rotary", "expected"),
    [
        ("llama", {"rope_type": "default", "rope_theta": 1e4}, 512),
        ("llama", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}, 512),
        ("phi3", {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4,
                  "long_factor": [4.0] * 4, "original_max_position_embeddings": 64}, 64),
    ],
)  # fmt: skip
def test_the_context_ends_where_the_rotation_would_change(name, rotary, expected):
    config = config_of(name)
    config.rope_parameters = rotary
    assert longest_context(config) == expected


def test_the_context_of_mixed_rotations_is_the_whole():
    assert longest_context(config_of("gemma3")) == 512


def test_a_folder_that_is_not_there_is_one_line():
    with pytest.raises(GraftError, match="nowhere") as error:
        load_model("./nowhere")
    one_line(error)


def test_fusing_in_place_leaves_one_copy_of_every_weight():
    network = build("qwen2")
    tokens = list(range(3, 20))
    expected = reference_logits(network, [tokens])[0]
    _, weights = read_llama(network, in_place=True)
    layer, own = weights.layers[0], network.model.layers[0]
    assert own.self_attn.q_proj.weight.data_ptr() == layer.qkv.data_ptr()
    assert own.self_attn.v_proj.weight.untyped_storage().data_ptr() == layer.qkv.data_ptr()
    assert own.mlp.up_proj.weight.untyped_storage().data_ptr() == layer.gate_up.data_ptr()
    torch.testing.assert_close(reference_logits(network, [tokens])[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "options", "triton", "says"),
    [
        ("llama", {}, True, None),
        ("llama", {"invariant": True}, True, "slabs"),
        ("llama", {}, False, "Triton"),
        ("phi3", {}, True, None),
    ],
)
def test_the_reason_for_no_graphs_is_named(name, options, triton, says, monkeypatch):
    monkeypatch.setattr(forward_choice, "has_triton", lambda: triton)
    reason = forward_choice.why_not_graphed(forward_choice.facts_of(build(name), name, **options))
    assert reason is None if says is None else says in reason


def _model() -> LanguageModel:
    forward = forward_choice.build_forward(build("llama"), name="tiny", kind="lean")[0]
    return LanguageModel(forward, vocabulary=VOCABULARY, context_length=2048)


def test_a_cpu_cache_is_bounded_only_by_max_bytes():
    free, bounded = _model(), _model()
    row = bounded.arena.storage.row_bytes
    hold_rows(free, "cpu", sequences=3, max_bytes=None)
    hold_rows(bounded, "cpu", sequences=3, max_bytes=2000 * row)
    assert free.arena.max_rows is None
    assert bounded.arena.max_rows == 2000
    with pytest.raises(InputError, match="give it .* MiB at least"):
        hold_rows(bounded, "cpu", sequences=3, max_bytes=100 * row)


@pytest.mark.parametrize(
    ("room", "rows"),
    [(100_000, 3 * 2048 + 5120), (8000, 8000), (4000, 4000)],
    ids=["enough", "for the sequences and some texts", "for less than the sequences"],
)
def test_a_gpu_cache_fits_sequences_and_cached_prefixes(monkeypatch, room, rows):
    model = _model()
    bytes_free = int(room * model.arena.storage.row_bytes / SHARE) + 1
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (bytes_free, bytes_free))
    hold_rows(model, "cuda", sequences=3, max_bytes=None, kept=5120)
    assert model.arena.storage.rows == rows


@pytest.mark.parametrize(
    ("devices", "shares"),
    [(("cuda:0", "cuda:0"), [0.75, 1.0]), (("cuda:0", "cuda:1"), [1.0, 1.0])],
    ids=["one GPU", "two"],
)
def test_models_share_what_is_free_on_their_gpu_by_the_size_of_their_rows(
    monkeypatch, devices, shares
):
    held = []
    monkeypatch.setattr(loading, "hold_rows", lambda *_, **given: held.append(given))
    both = [
        SimpleNamespace(
            model=SimpleNamespace(arena=SimpleNamespace(storage=SimpleNamespace(row_bytes=size))),
            device=device,
        )
        for size, device in zip((300, 100), devices, strict=True)
    ]
    loading._hold(both, sequences=2, kept=8000, max_bytes=None)
    assert [given["share"] for given in held] == shares
    assert [given["kept"] for given in held] == [20, 20]  # rows of 400 bytes in both
    loading._hold(both, sequences=2, kept=0, max_bytes=40_000)
    assert [given["max_bytes"] for given in held[2:]] == [30_000, 10_000]
