import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_words import byte_tokenizer, made_up_text, space_tokenizer

from graft.retrieval.chunks import MAX_TOKENS, chunks
from graft.retrieval.token_text import token_text

TOKENIZERS = [byte_tokenizer(), space_tokenizer()]
PIECES = [
    "word",
    " ",
    "\n",
    "\n\n",
    "\n## ",
    ". ",
    "。",
    ",",
    "，日本",
    "\t| a |\n",
    "é",
    "😀",
    "x" * 90,
]
LONG = st.lists(st.sampled_from(PIECES), max_size=120).map("".join) | st.text(max_size=200)


def cut(text, limit=MAX_TOKENS, tokenizer=TOKENIZERS[0]):
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return tokens, chunks(token_text(tokenizer, tokens), 0, len(tokens), limit)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(LONG, st.integers(1, 60))
def test_joined_chunks_are_the_tokens(tokenizer, text, limit):
    tokens, found = cut(text, limit, tokenizer)
    assert [token for chunk in found for token in tokens[chunk.start : chunk.end]] == tokens
    assert "".join(chunk.text for chunk in found) == token_text(tokenizer, tokens).text
    assert all(0 < len(chunk) <= limit for chunk in found)
    assert all(len(chunk) >= max(1, limit // 2) for chunk in found[:-1])


@pytest.mark.parametrize(
    ("unit", "limit", "end"),
    [
        ("Some words of a paragraph. And more,\nof it" + " here" * 9 + ".\n\n", 120, "here."),
        ("The sentence goes on\nto the next line.\n", 80, "next line."),
        ("| cell, one. | cell two |\n", 60, "cell two |"),
        ("    call(this. argument)\n", 60, "argument)"),
        ("One sentence ends. ", 40, "ends."),
        ('He said "(so.)" ', 40, '.)"'),
        ("this goes on, and on ", 60, "goes on,"),
        ("日本語の文はここで終わる。", 160, "終わる。"),
        ("日本語の文、ここは", 160, "文、"),
    ],
)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_cuts_are_at_the_best_border(unit, limit, end, tokenizer):
    _, found = cut(unit * 60, limit, tokenizer)
    assert len(found) > 3
    assert all(chunk.text.rstrip().endswith(end) for chunk in found[:-1])


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_words_stay_whole(tokenizer):
    _, found = cut("words without an end " * 60, 60, tokenizer)
    words = [word for chunk in found for word in chunk.text.split()]
    assert words == ("words without an end " * 60).split()


def test_a_section_begins_a_chunk():
    text = made_up_text(30) + "\n\n## Terms\n\n" + made_up_text(30, seed=1)
    assert any(chunk.text.startswith("## Terms") for chunk in cut(text)[1])


def test_one_giant_word_is_cut_at_the_limit():
    tokens, found = cut("x" * 5000, 100)
    assert {len(chunk) for chunk in found[:-1]} == {100}


def test_part_of_the_tokens_can_be_split():
    tokenizer = TOKENIZERS[0]
    tokens = tokenizer.encode(made_up_text(60), add_special_tokens=False)
    found = chunks(token_text(tokenizer, tokens), 37, 700, 100)
    assert (found[0].start, found[-1].end) == (37, 700)
    assert all(a.end == b.start for a, b in zip(found, found[1:], strict=False))


def test_empty_text_has_no_chunks():
    assert cut("")[1] == []
