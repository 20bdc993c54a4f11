import pytest

from graft.retrieval.citations import cite

TEXTS = [
    "The lift is serviced every March.",
    "Rent is due on the first day of each month. Rent is high.",
]


@pytest.mark.parametrize(
    ("answer", "spans"),
    [
        ("", []),
        ("The lift is old.", []),  # three words are too few
        ("Yes: the lift IS\nserviced every year", [("the lift IS\nserviced every", 0)]),
        ("Rent is due on the first day. The lift is serviced every March!",
         [("Rent is due on the first day", 1), ("The lift is serviced every March", 0)]),
    ],
)  # fmt: skip
def test_spans_that_repeat_a_text_are_cited(answer, spans):
    found = cite(answer, TEXTS)
    assert [(answer[each.start : each.end], each.text) for each in found] == spans
    for each in found:
        copied, source = answer[each.start : each.end], TEXTS[each.text][each.first : each.last]
        assert copied.lower().split() == source.lower().split()


def test_the_longest_source_is_cited():
    texts = ["a b c d e", "x a b c d e f", "a b c d"]
    [found] = cite("a b c d e f", texts)
    assert (found.text, found.first, found.last) == (1, 2, 13)


def test_scripts_without_spaces_are_cited_by_character():
    [found] = cite("答えは、春に点検します。", ["昇降機は毎年、春に点検しますが"])
    assert (found.start, found.end, found.first, found.last) == (4, 11, 7, 14)
