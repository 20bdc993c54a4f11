"""What does a prompt ask? The question stands at its end, seldom at its beginning.

A message that is not long is the question. At the end of a long one it is the last paragraph with
a question mark, or the last paragraph; lines or sentences where there are no paragraphs. If that
has no words to search for ("And why?"), what was said before is looked at too.
"""

from graft.retrieval.bm25 import telling_words
from graft.retrieval.chunks import LINE, PARAGRAPH, SENTENCE, cut
from graft.retrieval.contents import Span
from graft.retrieval.token_text import TokenText

MARKS = "?？؟"
LEAST_WORDS = 2
MOST_CONTENTS = 3  # how far back a question may reach


def tail(text: TokenText, content: Span, most: int) -> tuple[Span, str]:
    """The question at the end of a content, `most` tokens of it at most or all of it, to its very
    end; and the words of it that ask."""
    start, end = content
    if end - start <= most:
        return content, text.of(start, end).strip()
    starts = _unit_starts(text, end - most, end)
    units = [text.text[a:b] for a, b in zip(starts, [*starts[1:], text.place(end)], strict=True)]
    asking = [number for number, unit in enumerate(units) if _asks(unit)]
    first = number = asking[-1] if asking else len(units) - 1
    while first and len(telling_words("".join(units[first : number + 1]))) < LEAST_WORDS:
        first -= 1
    return (max(start, text.border(starts[first])), end), "".join(units[first : number + 1]).strip()


def head(text: TokenText, content: Span, most: int) -> Span:
    """The instruction at the beginning of a content: `most` tokens at most."""
    start, end = content
    return start, end if end - start <= most else cut(text, start + 1, start + most)


def query(text: TokenText, contents: list[Span], tail_most: int, head_most: int) -> str:
    """The words to search with."""
    start, end = contents[-1]
    _, asked = tail(text, contents[-1], tail_most)
    if end - start > tail_most and not _asks(asked):
        first = text.of(*head(text, contents[-1], head_most))
        if _asks(first):
            return first[: max(map(first.rfind, MARKS)) + 1].strip()
    for earlier in contents[-2 : -1 - MOST_CONTENTS : -1]:
        if len(telling_words(asked)) >= LEAST_WORDS:
            break
        asked = f"{tail(text, earlier, tail_most)[1]}\n{asked}"
    return asked


def _asks(unit: str) -> bool:
    return any(mark in unit for mark in MARKS)


def _unit_starts(text: TokenText, start: int, end: int) -> list[int]:
    """Places where paragraphs begin, else lines, else sentences; else where the tokens do."""
    first, last = text.place(start), text.place(end)
    last = first + len(text.text[first:last].rstrip())
    for level in (PARAGRAPH, LINE, SENTENCE):
        starts = [match.end() for match in level.finditer(text.text, first, last)]
        if starts := [place for place in starts if place < last]:
            return starts
    return [first]
