"""Prompts in, answers out: content spans of chats, characters split over tokens."""

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
    """The pieces of a chat that may be drafted."""
    encoded = encoder.prompt(messages)
    return [tiny_tokenizer().decode(encoded.tokens[a:b]) for a, b in encoded.quotable]


def test_a_character_appears_when_its_last_byte_has_come():
    tokens = tiny_tokenizer()("a€😀").input_ids
    detokenizer = Detokenizer(tiny_tokenizer(), ())
    assert [detokenizer.push(token) for token in tokens] == ["a", "", "", "€", "", "", "", "😀"]
    assert detokenizer.finish(tokens) == ""
    assert detokenizer.text == "a€😀"


def test_an_unfinished_character_is_shown_at_the_end():
    tokens = tiny_tokenizer()("a€").input_ids[:-1]
    detokenizer = Detokenizer(tiny_tokenizer(), ())
    pieces = [detokenizer.push(token) for token in tokens]
    assert pieces == ["a", "", ""]
    assert "".join(pieces) + detokenizer.finish(tokens) == tiny_tokenizer().decode(tokens)


@pytest.mark.parametrize("text", ["", "the end", "a€😀", "one<|im_end|>two", "é"])
@pytest.mark.parametrize("left_out", [0, 1])
def test_text_made_at_the_end_is_the_text_made_token_by_token(text, left_out):
    tokens = tiny_tokenizer()(text).input_ids
    tokens = tokens[: len(tokens) - left_out]  # the last character may stay unfinished
    pushed, at_once, half = (Detokenizer(tiny_tokenizer(), ()) for _ in range(3))
    pieces = [pushed.push(token) for token in tokens]
    shown = "".join(pieces) + pushed.finish(tokens)
    assert at_once.finish(tokens) == at_once.text == pushed.text == shown
    begun = "".join(half.push(token) for token in tokens[: len(tokens) // 2])
    assert begun + half.finish(tokens) == shown


@cache
def byte_fallback_tokenizer():
    """As Llama 2's: a byte is a token where no other fits, and a wrong one spoils others."""
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
def test_bytes_that_are_no_text_are_shown_as_marks_and_nothing_after_them_is_lost(tokens):
    pushed, at_once = (Detokenizer(byte_fallback_tokenizer(), ()) for _ in range(2))
    shown = "".join(pushed.push(token) for token in tokens) + pushed.finish(tokens)
    assert shown == pushed.text
    at_once.finish(tokens)
    assert at_once.text == shown
    assert shown.count("a") == tokens.count(257)
    valid = byte_fallback_tokenizer().decode(tokens)
    if "\ufffd" not in valid:
        assert shown == valid


def test_a_byte_that_is_no_text_leaves_what_was_shown():
    detokenizer = Detokenizer(byte_fallback_tokenizer(), ())
    tokens = [ord("A") + 1, 0xE2 + 1, 257, 257, 0xE2 + 1]
    assert [detokenizer.push(token) for token in tokens] == ["A", "", "\ufffd a", " a", ""]
    assert detokenizer.finish(tokens) == "\ufffd"


def test_special_tokens_are_not_shown():
    detokenizer = Detokenizer(tiny_tokenizer(), ())
    tokens = [*tiny_tokenizer()("one").input_ids, IM_END, END]
    assert "".join([detokenizer.push(token) for token in tokens]) == "one"
    assert detokenizer.finish(tokens) == ""


def test_only_the_messages_own_words_are_content(encoder):
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "  is this the end?\n"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "and now?"},
    ]
    assert content(encoder, messages) == ["be kind", "is this the end?", "yes", "and now?"]


@pytest.mark.parametrize("words", ["user", "assistant", "s", "user\nuser"])
def test_words_of_the_template_are_not_taken_for_content(encoder, words):
    encoded = encoder.prompt([{"role": "user", "content": words}])
    before = len(tiny_tokenizer()("<|im_start|>user\n").input_ids)
    length = len(tiny_tokenizer()(words).input_ids)
    assert encoded.quotable == [(before, before + length)]


def test_plain_text_and_token_ids_are_content_from_end_to_end(encoder):
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
def test_a_prompt_that_cannot_be_used_is_refused_in_one_line(encoder, prompt):
    with pytest.raises(InputError) as refused:
        encoder.prompt(prompt)
    assert "\n" not in str(refused.value)


def test_without_a_tokenizer_token_ids_go_in_and_out():
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


def test_a_drafting_text_may_be_token_ids_but_not_wrong_ones(encoder):
    assert encoder.text([1, 2]) == [1, 2]
    with pytest.raises(InputError, match="token 200 is not among"):
        encoder.text([200])


def test_a_chat_may_bring_what_its_template_knows(encoder):
    tokenizer = copy(tiny_tokenizer())
    tokenizer.chat_template = "{{ tools[0].name }}: " + tokenizer.chat_template
    chat = [{"role": "user", "content": "the end"}]
    encoded = Encoder(tokenizer, 128).chat(chat, tools=[{"name": "an"}])
    assert tokenizer.decode(encoded.tokens).startswith("an: <|im_start|>user")
    assert [tokenizer.decode(encoded.tokens[a:b]) for a, b in encoded.quotable] == ["the end"]
    assert encoder.prompt(encoded) is encoded
    with pytest.raises(InputError, match="template"):
        encoder.chat(chat, tools=["no tool"])
