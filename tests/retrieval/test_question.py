import pytest
from tiny_words import byte_tokenizer, made_up_text

from graft.retrieval.question import head, query, tail
from graft.retrieval.token_text import token_text

MOST = 120


def read(*texts):
    """Text and spans of adjacent contents."""
    tokenizer, tokens, spans = byte_tokenizer(), [], []
    for text in texts:
        start = len(tokens)
        tokens += tokenizer.encode(text, add_special_tokens=False)
        spans.append((start, len(tokens)))
    return token_text(tokenizer, tokens), spans


def asked(*texts):
    text, spans = read(*texts)
    return query(text, spans, MOST, 60)


LONG = made_up_text(60)


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (f"{LONG}\n\nWho sold the harbour?", "Who sold the harbour?"),
        (f"{LONG}\n\nDescribe the sold harbour.", "Describe the sold harbour."),
        (f"{LONG}\n\nWho sold the harbour?\n\nAnswer in a word.", "Who sold the harbour?"),
        (f"{LONG}\n\nQuestion: who sold it?\nAnswer:", "Question: who sold it?\nAnswer:"),
        (f"{LONG}\n\nThe harbour was sold.\n\nBy whom?", "The harbour was sold.\n\nBy whom?"),
        (f"{LONG.replace(chr(10), ' ')} Who sold the harbour?", "Who sold the harbour?"),
        (f"Who sold the harbour?\n\n{LONG}", "Who sold the harbour?"),
        ("東京は大きい。" * 60 + "\n\n東京は大きいですか？", "東京は大きいですか？"),
        ("Who sold the harbour?", "Who sold the harbour?"),
    ],
)
def test_the_question_of_a_prompt(prompt, found):
    assert asked(prompt) == found


def test_last_message_is_the_question():
    assert asked(LONG, "Who sold the harbour?", "Ann.", "Who paid Ann?") == "Who paid Ann?"


def test_question_without_content_words_uses_earlier_messages():
    assert asked("Who sold the harbour?", "And why?") == "Who sold the harbour?\nAnd why?"
    assert asked("And why?") == "And why?"


def test_a_question_is_kept_to_the_end_of_its_message():
    text, [span] = read(f"{LONG}\n\nWho sold the harbour?\n\nAnswer in one word.")
    kept, words = tail(text, span, MOST)
    assert text.of(*kept).strip() == "Who sold the harbour?\n\nAnswer in one word."
    assert kept[1] == span[1]
    assert words == "Who sold the harbour?"


def test_neither_question_nor_instruction_is_longer_than_allowed():
    text, [span] = read("x" * 4000)
    assert tail(text, span, MOST)[0] == (span[1] - MOST, span[1])
    assert head(text, span, MOST) == (0, MOST)


def test_an_instruction_is_cut_where_it_ends():
    text, [span] = read(f"Read this.\n\n{'long' * 400}")
    assert text.of(*head(text, span, 60)) == "Read this.\n\n"
