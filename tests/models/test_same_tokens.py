"""A draft model must mean the same by its ids."""

from dataclasses import replace
from pathlib import Path

import pytest

from graft.errors import InputError
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.load import LoadedModel
from graft.models.same_tokens import check_same_tokens


class Tokenizer:
    def __init__(self, words):
        self.words = words

    def get_vocab(self):
        return {word: i for i, word in enumerate(self.words)}


WORDS = [f"w{i}" for i in range(100)]
TARGET = LoadedModel(
    None, Tokenizer(WORDS), Checkpoint("target", Path(), ""), frozenset(), "fp32", "cpu", "lean"
)


def draft(words):
    return replace(TARGET, tokenizer=Tokenizer(words), checkpoint=Checkpoint("draft", Path(), ""))


@pytest.mark.parametrize("words", [WORDS, WORDS[:-1], [*WORDS, "<extra>"], [*WORDS[:99], "other"]])
def test_the_same_tokens_but_for_some_special_ones_will_do(words):
    check_same_tokens(TARGET, draft(words))


@pytest.mark.parametrize(
    "words", [WORDS[::-1], WORDS[:50], WORDS * 1 + [f"x{i}" for i in range(9)], ["a", *WORDS[:99]]]
)
def test_other_tokens_are_refused_in_one_line(words):
    with pytest.raises(InputError, match="draft has another tokenizer than target") as refused:
        check_same_tokens(TARGET, draft(words))
    assert "\n" not in str(refused.value)
