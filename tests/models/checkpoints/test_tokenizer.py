"""What tells tokenizers apart, and texts turned into ids many at a time."""

import pytest
from tiny import tiny_network, tiny_tokenizer
from transformers import PreTrainedTokenizerFast

from graft.errors import CheckpointError
from graft.models.checkpoints.tokenizer import (
    batch_encoder,
    read_tokenizer,
    tokenizer_fingerprint,
    vocabulary_size,
)


def changed(old, new):
    text = tiny_tokenizer().backend_tokenizer.to_str()
    assert old in text
    backend = type(tiny_tokenizer().backend_tokenizer).from_str(text.replace(old, new))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_another_token_or_another_way_of_cutting_makes_another_tokenizer(tmp_path):
    own = tokenizer_fingerprint(tiny_tokenizer())
    assert tokenizer_fingerprint(changed("<|unused1|>", "<|new|>")) != own
    assert (
        tokenizer_fingerprint(changed('"add_prefix_space":false', '"add_prefix_space":true')) != own
    )
    tiny_network(layers=1).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert tokenizer_fingerprint(read_tokenizer(str(tmp_path))) == own


def test_all_of_a_text_is_encoded_whatever_was_set_before():
    tokenizer = changed("<|unused1|>", "<|new|>")
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    texts = ["the rain in the plain", "wet"]
    found = [array.tolist() for array in batch_encoder(tokenizer)(texts)]
    assert found == [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert len(found[0]) > 9
    assert vocabulary_size(tokenizer) == 128


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    tiny_network(layers=1).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_tokenizer(str(tmp_path))
