"""Folders of hybrid and vision-language checkpoints load by name and answer as without drafts."""

import pytest
import torch
import transformers as hf
from daily import daily
from tiny import VOCABULARY, tiny_tokenizer
from tiny_architectures import repeating

import graft

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0,
    "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "patch_size": 8,
          "num_attention_heads": 2, "image_size": 32}  # fmt: skip
WITH_IMAGES = {
    "Llava": {
        "text_config": SIZES | {"model_type": "llama"},
        "vision_config": VISION | {"model_type": "clip_vision_model", "projection_dim": 32},
    },
    "Mistral3": {"text_config": SIZES | {"model_type": "mistral"}},
    "Gemma3": {"text_config": SIZES, "vision_config": VISION},
    "Lfm2Vl": {
        "text_config": SIZES | {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}
    },
}
pytestmark = pytest.mark.usefixtures("one_thread")
SAID = graft.SamplingParams(max_tokens=64, ignore_eos=True)


def network_with_images(stem):
    torch.manual_seed(0)
    config = getattr(hf, f"{stem}Config")(**WITH_IMAGES[stem])
    return getattr(hf, f"{stem}ForConditionalGeneration")(config).eval()


def answers(network, folder):
    network.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    engine = graft.load(str(folder), device="cpu", dtype="fp32", head=None)
    assert engine.loaded.forward_name in ("hook", "hook-panels")
    return [
        engine.generate("the end and the end", SAID, draft=draft) for draft in ("plain", "copy")
    ]


@pytest.mark.parametrize("stem", daily(WITH_IMAGES, "Llava"))
def test_the_text_decoder_of_a_vision_language_model(stem, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    plain, drafted = answers(network_with_images(stem), tmp_path)
    assert drafted.token_ids == plain.token_ids
    assert len(plain.token_ids) == SAID.max_tokens


@pytest.mark.parametrize("name", daily(["qwen3.5", "mamba2", "nemotron-h", "lfm2"], "mamba2"))
def test_a_folder_with_a_recurrent_model(name, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    plain, drafted = answers(repeating(name), tmp_path)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_accepted_draft_tokens > 0
