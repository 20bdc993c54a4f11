import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_words import byte_tokenizer, made_up_text, space_tokenizer

from graft.retrieval import token_text as module
from graft.retrieval.token_text import MAX_HELD, token_text

TOKENIZERS = pytest.mark.parametrize("tokenizer", [byte_tokenizer(), space_tokenizer()])
TEXTS = ["", "plain words", made_up_text(30), "日本語の文章。\n\n東京😀", "a\n\n\n  b\t", "é" * 90]


@TOKENIZERS
@pytest.mark.parametrize("text", TEXTS)
def test_text_is_the_encoded_text(tokenizer, text):
    tokens = tokenizer.encode(text, add_special_tokens=False)
    found = token_text(tokenizer, tokens)
    assert found.text == text
    assert found.borders[0] == found.places[0] == 0
    assert found.borders[-1] == len(tokens)
    assert found.places[-1] == len(text)
    for border, place in zip(found.borders, found.places, strict=True):
        assert tokenizer.decode(tokens[:border]) == text[:place]


@TOKENIZERS
@given(st.data())
def test_any_token_ids_have_a_text(tokenizer, data):
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer) + 5), max_size=80))
    found = token_text(tokenizer, tokens)
    assert found.borders[-1] == len(tokens)
    assert len(found.borders) == len(found.places)
    assert found.places[-1] == len(found.text)
    assert (found.borders[1:] > found.borders[:-1]).all()
    assert "".join(
        found.of(a, b) for a, b in zip(found.borders, found.borders[1:], strict=False)
    ) == (found.text)


def assert_streamed_alike(tokenizer, tokens):
    found = token_text(tokenizer, tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_token_bytes", lambda tokenizer: None)
        streamed = token_text(tokenizer, tokens)
    assert found.text == streamed.text
    assert found.borders.tolist() == streamed.borders.tolist()
    assert found.places.tolist() == streamed.places.tolist()


@pytest.mark.parametrize("text", [*TEXTS, "<unk> </s>", "\ufffd", "a\ufffdb", "\x00\x7f\xad\xa0"])
def test_table_gives_the_same_text_as_the_decoder(text, monkeypatch):
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert_streamed_alike(tokenizer, tokens)
    monkeypatch.setattr(module, "_pieces", None)  # nobody is asked
    if module.UNKNOWN not in text:
        assert token_text(tokenizer, tokens).text == text


@given(st.data())
def test_table_gives_the_same_text_for_random_ids(data):
    tokenizer = byte_tokenizer()
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer) + 2), max_size=30))
    assert_streamed_alike(tokenizer, tokens)


def test_borders_are_never_inside_a_character():
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode("😀😀", add_special_tokens=False)
    assert len(tokens) > 4
    found = token_text(tokenizer, tokens)
    assert found.text == "😀😀"
    assert len(found.borders) == 3
    assert found.of(0, 2) == ""
    assert found.border(0) == 0
    assert found.border(2) == len(tokens)


def test_invalid_utf8_is_not_held_back():
    tokenizer = byte_tokenizer()
    [half] = {tokenizer.encode("\ud7a3", add_special_tokens=False)[0]}
    found = token_text(tokenizer, [half] * 500)
    assert len(found.borders) > 500 // (2 * MAX_HELD)
