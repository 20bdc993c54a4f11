"""Stop strings: found across token borders, and never part of the text."""

import pytest
from tiny import tiny_tokenizer

from graft.decode.text import Detokenizer


def write(text, stop):
    """Push a text token by token until it stops; the returned texts and the detokenizer."""
    detokenizer = Detokenizer(tiny_tokenizer(), stop)
    pieces, tokens = [], []
    for token in tiny_tokenizer()(text).input_ids:
        tokens.append(token)
        pieces.append(detokenizer.push(token))
        if detokenizer.stopped:
            break
    pieces.append(detokenizer.finish(tokens))
    return pieces, detokenizer


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("one. two", (". ",), "one"),  # across two tokens
        ("in the end", ("he e",), "in t"),  # begins inside one token, ends inside another
        ("aab", ("ab",), "a"),  # the first a is returned when the second arrives
        ("xyzzy", ("q", "zz", "yz"), "x"),  # of several the earliest
        ("no stop", ("stops",), "no stop"),  # held back until the end, then returned
        ("€€", ("€€",), ""),  # characters of several tokens each
        ("end", ("end",), ""),  # nothing before it
    ],
)
def test_text_ends_before_the_first_stop_string(text, stop, shown):
    pieces, detokenizer = write(text, stop)
    assert "".join(pieces) == shown
    assert detokenizer.text == shown
    assert detokenizer.stopped == (shown != text)


def test_prefix_of_a_stop_string_is_held_back():
    pieces, _ = write("a<b<<c", ("<<",))
    assert pieces == ["a", "", "<b", "", "", ""]


def test_stop_string_in_an_incomplete_character_is_found_at_the_end():
    pieces, detokenizer = write("ok", ("\ufffd",))
    assert "".join(pieces) == "ok"
    detokenizer = Detokenizer(tiny_tokenizer(), ("\ufffd",))
    tokens = tiny_tokenizer()("a€").input_ids[:-1]
    shown = "".join(detokenizer.push(token) for token in tokens) + detokenizer.finish(tokens)
    assert shown == "a"
    assert detokenizer.stopped
