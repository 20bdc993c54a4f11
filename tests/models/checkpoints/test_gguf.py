import contextlib
import json
import multiprocessing
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_gguf

from graft.errors import CheckpointError
from graft.home import home
from graft.models.checkpoints import gguf, gguf_tokenizer
from graft.models.checkpoints.folder import MANIFEST, check_folder, fingerprint


@pytest.fixture(autouse=True)
def graft_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("GRAFT_HOME", str(tmp_path / "home"))
    return home()


@pytest.fixture
def tiny(tmp_path) -> Path:
    return tiny_gguf.write(tmp_path / "tiny.gguf")


def convert(file: Path) -> Path:
    return gguf.convert(file, progress=False)


def count_conversions(monkeypatch) -> list[Path]:
    done = []
    original = gguf._write_folder

    def counted(file, folder, digest, *, progress):
        done.append(folder)
        original(file, folder, digest, progress=progress)

    monkeypatch.setattr(gguf, "_write_folder", counted)
    return done


def refused(file: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        convert(file)
    message = str(caught.value)
    assert "\n" not in message
    assert file.name in message
    return message


def test_weights_are_those_of_the_file_in_bfloat16(tiny):
    import torch
    from safetensors.torch import load_file

    loaded = load_file(convert(tiny) / "model.safetensors")
    expected = tiny_gguf.weights()
    assert "lm_head.weight" not in loaded
    for theirs, ours in {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight",
        "blk.1.attn_k.weight": "model.layers.1.self_attn.k_proj.weight",
        "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }.items():
        assert torch.equal(loaded[ours], torch.from_numpy(expected[theirs]).bfloat16()), ours


def test_quantised_weights_come_close(tmp_path):
    import torch
    from safetensors.torch import load_file

    folder = convert(tiny_gguf.write(tmp_path / "q8.gguf", quantised=True))
    loaded = load_file(folder / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    expected = torch.from_numpy(tiny_gguf.weights()["blk.0.attn_q.weight"])
    assert (loaded.float() - expected).abs().max() < 0.01


def test_transformers_loads_the_folder(tiny):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = convert(tiny)
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not report["unexpected_keys"]
    assert not set(report["missing_keys"]) - {"lm_head.weight"}
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.config.rope_parameters["rope_theta"] == 100000.0
    assert model.config.rms_norm_eps == 1e-5
    assert model.generation_config.eos_token_id == [0, 2]

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "  the 1234\n\n\tdef f(): é 漢字 🙂 "
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer("<|im_start|>the<|im_end|>").input_ids == [1, len(tiny_gguf.tokens()) - 1, 2]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "the"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"


def test_sentencepiece_tokenizer_keeps_text_and_joins_by_score():
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "t", "h", "e", "th", "he", "the", "\u2581the"]
    metadata = {
        "tokenizer.ggml.scores": [0.0] * 263 + [-2.0, -1.0, -3.0, -4.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 8,
        "tokenizer.ggml.bos_token_id": 1,
    }
    file = SimpleNamespace(metadata=metadata, path=Path("spm.gguf"))
    tokenizer = gguf_tokenizer._sentencepiece(file, tokens)
    assert tokenizer.encode("the").tokens == ["<s>", "\u2581the"]
    text = "  the é\n\t漢 "
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_llama3_positions_are_recognised(tmp_path):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    settings = {
        "rope_type": "llama3",
        "rope_theta": 100000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, rope_parameters=settings)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    factors = [100000.0 ** (-i / 4) / f for i, f in enumerate(scaled.tolist())]
    folder = convert(tiny_gguf.write(tmp_path / "a.gguf", rope_factors=factors))
    written = json.loads((folder / "config.json").read_text())["rope_parameters"]
    assert written.pop("factor") == pytest.approx(settings.pop("factor"), rel=1e-5)
    assert written == settings


def test_other_position_factors_are_refused(tmp_path):
    file = tiny_gguf.write(tmp_path / "a.gguf", rope_factors=[1.0, 1.5, 2.0, 2.5])
    assert "scales positions" in refused(file)


def test_second_conversion_does_nothing(tiny, monkeypatch):
    done = count_conversions(monkeypatch)
    folder = convert(tiny)
    monkeypatch.setattr(
        "graft.models.checkpoints.folder.file_sha256", lambda file: pytest.fail("hashed again")
    )
    assert convert(tiny) == folder
    assert len(done) == 1


def test_manifest_lists_every_file(tiny, graft_home):
    folder = convert(tiny)
    assert folder.parent == graft_home / "models"
    manifest = json.loads((folder / MANIFEST).read_text())
    assert set(manifest["files"]) == {file.name for file in folder.iterdir()} - {MANIFEST}
    assert manifest["source_sha256"][:12] == folder.name.removeprefix("tiny-")
    check_folder(folder, tokenizer=True)


@pytest.mark.parametrize("damage", ["cut", "missing", "manifest", "bytes"])
def test_damaged_folder_is_converted_again(tiny, monkeypatch, damage):
    folder = convert(tiny)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "cut":
        os.truncate(weights, 100)
    elif damage == "missing":
        weights.unlink()
    elif damage == "manifest":
        (folder / MANIFEST).write_text("{")
    else:
        weights.write_bytes(whole[:-1] + b"x")
    done = count_conversions(monkeypatch)
    gguf.convert(tiny, progress=False, verify=damage == "bytes")
    assert len(done) == 1
    assert weights.read_bytes() == whole


def test_fingerprint_follows_the_weights(tmp_path):
    first = fingerprint(convert(tiny_gguf.write(tmp_path / "a.gguf", seed=1)))
    again = fingerprint(convert(tiny_gguf.write(tmp_path / "b.gguf", seed=1)))
    other = fingerprint(convert(tiny_gguf.write(tmp_path / "c.gguf", seed=2)))
    assert first == again != other


def test_truncated_anywhere_is_one_line(tiny, tmp_path):
    whole = tiny.read_bytes()
    for size in [0, 3, 6, 20, 100, 1000, len(whole) // 2, len(whole) - 40]:
        cut = tmp_path / f"cut{size}.gguf"
        cut.write_bytes(whole[:size])
        refused(cut)


def test_flipped_bytes_never_end_in_a_foreign_error(tiny, tmp_path):
    whole = tiny.read_bytes()
    metadata = whole.find(b"blk.0")
    for position in range(4, metadata, 97):
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(whole[:position] + b"\xff" + whole[position + 1 :])
        with contextlib.suppress(CheckpointError):
            convert(broken)


def test_other_files_are_named(tmp_path):
    other = tmp_path / "model.gguf"
    other.write_bytes(b"PK\x03\x04" + bytes(100))
    assert "is not a GGUF file" in refused(other)
    other.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    assert "version 1" in refused(other)
    assert "does not exist" in refused(tmp_path / "absent.gguf")


def test_unsupported_contents_are_named(tmp_path):
    assert "'mamba'" in refused(tiny_gguf.write(tmp_path / "a.gguf", architecture="mamba"))
    assert "'tekken'" in refused(tiny_gguf.write(tmp_path / "b.gguf", pre="tekken"))
    missing = tiny_gguf.write(tmp_path / "c.gguf", skip="blk.1.ffn_up.weight")
    assert "blk.1.ffn_up.weight" in refused(missing)


def test_nothing_is_left_after_a_failure(tmp_path, graft_home):
    refused(tiny_gguf.write(tmp_path / "b.gguf", pre="tekken"))
    assert [file.name for file in (graft_home / "models").iterdir()] == ["checksums.json"]


def _convert_and_log(file: Path, log: Path) -> None:
    original = gguf._write_folder

    def counted(*arguments, **options):
        with log.open("a") as opened:
            opened.write("x")
        original(*arguments, **options)

    gguf._write_folder = counted
    check_folder(convert(file))


def test_two_processes_convert_once(tiny, tmp_path):
    context = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    workers = [context.Process(target=_convert_and_log, args=(tiny, log)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert log.read_text() == "x"
