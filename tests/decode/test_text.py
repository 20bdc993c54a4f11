"""Tokenization: content spans of chats, characters split over tokens."""

from copy import copy
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import END, IM_END, tiny_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from graft.decode.text import Detokenizer, Encoder
from graft.errors import InputError


@pytest.fixture
def encoder():
    return Encoder(tiny_tokenizer(), 128)


def content(encoder, messages):
    """The quotable spans of a chat."""
    encoded = encoder.prompt(messages)
    return [tiny_tokenizer().decode(encoded.tokens[a:b]) for a, b in encoded.quotable]


def test_character_is_returned_with_its_last_byte():
    tokens = tiny_tokenizer()("a€😀").input_ids
    detokenizer = Detokenizer(tiny_tokenizer(), ())
    assert [detokenizer.push(token) for token in tokens] == ["a", "", "", "€", "", "", "", "😀"]
    assert detokenizer.finish(tokens) == ""
    assert detokenizer.text == "a€😀"


def test_incomplete_character_is_returned_at_the_end():
    tokens = tiny_tokenizer()("a€").input_ids[:-1]
    detokenizer = Detokenizer(tiny_tokenizer(), ())
    pieces = [detokenizer.push(token) for token in tokens]
    assert pieces == ["a", "", ""]
    assert "".join(pieces) + detokenizer.finish(tokens) == tiny_tokenizer().decode(tokens)


@pytest.mark.parametrize("text", ["", "the end", "a€😀", "one<|im_end|>two", "é"])
@pytest.mark.parametrize("left_out", [0, 1])
def test_text_decoded_at_the_end_equals_text_decoded_token_by_token(text, left_out):
    tokens = tiny_tokenizer()(text).input_ids
    tokens = tokens[: len(tokens) - left_out]  # the last character may be incomplete
    pushed, at_once, half = (Detokenizer(tiny_tokenizer(), ()) for _ in range(3))
    pieces = [pushed.push(token) for token in tokens]
    shown = "".join(pieces) + pushed.finish(tokens)
    assert at_once.finish(tokens) == at_once.text == pushed.text == shown
    begun = "".join(half.push(token) for token in tokens[: len(tokens) // 2])
    assert begun + half.finish(tokens) == shown


@cache
def byte_fallback_tokenizer():
    """As Llama 2's: bytes are tokens, and an invalid byte changes the text before it."""
    single = {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocabulary = {"<unk>": 0, **single, "\u2581a": 257}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, unk_token="<unk>"
    )


@given(st.lists(st.sampled_from([*b"Az\xe2\x82\xac\xc3\xff", 256]).map(lambda byte: byte + 1)))
def test_invalid_bytes_become_replacement_characters_and_no_text_is_lost(tokens):
    pushed, at_once = (Detokenizer(byte_fallback_tokenizer(), ()) for _ in range(2))
    shown = "".join(pushed.push(token) for token in tokens) + pushed.finish(tokens)
    assert shown == pushed.text
    at_once.finish(tokens)
    assert at_once.text == shown
    assert shown.count("a") == tokens.count(257)
    valid = byte_fallback_tokenizer().decode(tokens)
    if "\ufffd" not in valid:
        assert shown == valid


def test_invalid_byte_keeps_text_already_returned():
    detokenizer = Detokenizer(byte_fallback_tokenizer(), ())
    tokens = [ord("A") + 1, 0xE2 + 1, 257, 257, 0xE2 + 1]
    assert [detokenizer.push(token) for token in tokens] == ["A", "", "\ufffd a", " a", ""]
    assert detokenizer.finish(tokens) == "\ufffd"


def test_special_tokens_have_no_text():
    detokenizer = Detokenizer(tiny_tokenizer(), ())
    tokens = [*tiny_tokenizer()("one").input_ids, IM_END, END]
    assert "".join([detokenizer.push(token) for token in tokens]) == "one"
    assert detokenizer.finish(tokens) == ""


def test_only_message_contents_are_quotable(encoder):
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "  is this the end?\n"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "and now?"},
    ]
    assert content(encoder, messages) == ["be kind", "is this the end?", "yes", "and now?"]


@pytest.mark.parametrize("words", ["user", "assistant", "s", "user\nuser"])
def test_template_text_is_not_quotable(encoder, words):
    encoded = encoder.prompt([{"role": "user", "content": words}])
    before = len(tiny_tokenizer()("<|im_start|>user\n").input_ids)
    length = len(tiny_tokenizer()(words).input_ids)
    assert encoded.quotable == [(before, before + length)]


def test_plain_text_and_token_ids_are_quotable_as_a_whole(encoder):
    assert encoder.prompt("the end").quotable == [(0, len(encoder.text("the end")))]
    assert encoder.prompt([5, 6, 7]).quotable == [(0, 3)]


@pytest.mark.parametrize(
    "prompt",
    [
        "", " \n", [], [{"role": "user", "content": " "}], [{"role": "user"}], [{"content": "x"}],
        [1, "x"], [128], [-1], [None],
    ],
    ids=repr,
)  # fmt: skip
def test_unusable_prompt_is_refused_in_one_line(encoder, prompt):
    with pytest.raises(InputError) as refused:
        encoder.prompt(prompt)
    assert "\n" not in str(refused.value)


def test_without_a_tokenizer_token_ids_work():
    encoder = Encoder(None, 128)
    assert encoder.prompt([5, 6, 7]).tokens == [5, 6, 7]
    assert encoder.text([8, 9]) == [8, 9]
    detokenizer = Detokenizer(None, ())
    assert [detokenizer.push(5), detokenizer.finish([5]), detokenizer.text] == ["", "", ""]


@pytest.mark.parametrize("prompt", ["then", [{"role": "user", "content": "then"}]])
def test_without_a_tokenizer_text_is_refused(prompt):
    with pytest.raises(InputError, match="without a tokenizer"):
        Encoder(None, 128).prompt(prompt)


def test_without_a_tokenizer_drafting_texts_and_stop_strings_are_refused():
    with pytest.raises(InputError, match="without a tokenizer"):
        Encoder(None, 128).text("then")
    with pytest.raises(InputError, match="stop strings need a tokenizer"):
        Detokenizer(None, ("end",))


def test_text_to_draft_from_may_be_valid_token_ids(encoder):
    assert encoder.text([1, 2]) == [1, 2]
    with pytest.raises(InputError, match="token 200 is not among"):
        encoder.text([200])


def test_chat_options_go_to_the_template(encoder):
    tokenizer = copy(tiny_tokenizer())
    tokenizer.chat_template = "{{ tools[0].name }}: " + tokenizer.chat_template
    chat = [{"role": "user", "content": "the end"}]
    encoded = Encoder(tokenizer, 128).chat(chat, tools=[{"name": "an"}])
    assert tokenizer.decode(encoded.tokens).startswith("an: <|im_start|>user")
    assert [tokenizer.decode(encoded.tokens[a:b]) for a, b in encoded.quotable] == ["the end"]
    assert encoder.prompt(encoded) is encoded
    with pytest.raises(InputError, match="template"):
        encoder.chat(chat, tools=["no tool"])
