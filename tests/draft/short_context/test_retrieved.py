"""Short prompts are kept."""

import pytest
from tiny_words import byte_tokenizer, made_up_text

from graft.draft.short_context import retrieved
from graft.draft.short_context.retrieved import Retrieval
from graft.retrieval.shorten import Shortener


@pytest.fixture
def shortened(monkeypatch):
    """The prompts that were shortened."""
    seen, shorten = [], Shortener.shorten

    def watched(shortener, tokens, *more):
        seen.append(list(tokens))
        return shorten(shortener, tokens, *more)

    monkeypatch.setattr(Shortener, "shorten", watched)
    return seen


def prompt(number):
    text = f"{made_up_text(60)} Number {number}? {made_up_text(3)}"
    return byte_tokenizer().encode(text, add_special_tokens=False)


def test_repeated_prompt_is_shortened_once(shortened):
    shorten = Retrieval(budget=300).with_tokenizer(byte_tokenizer())
    tokens = prompt(1)
    whole = [(0, len(tokens))]
    first = shorten(tokens, whole)
    assert 0 < len(first) <= 300
    assert shorten(list(tokens), whole) is first
    assert len(shortened) == 1
    assert shorten(prompt(2), whole) != first
    assert shorten(tokens, [(0, len(tokens) - 40)]) != first
    assert len(shortened) == 3


def test_prompt_that_cannot_be_shortened_is_kept_too(shortened):
    shorten = Retrieval(budget=300).with_tokenizer(byte_tokenizer())
    assert shorten([5] * 20, [(0, 20)]) is None
    assert shorten([5] * 20, [(0, 20)]) is None
    assert len(shortened) == 1


def test_latest_prompts_are_kept(shortened, monkeypatch):
    monkeypatch.setattr(retrieved, "MAX_KEPT", 2)
    shorten = Retrieval(budget=300).with_tokenizer(byte_tokenizer())
    for number in (1, 2, 1, 3, 1, 2):
        tokens = prompt(number)
        shorten(tokens, [(0, len(tokens))])
    assert len(shortened) == 4
