"""Find the question of a prompt, at its end or, rarely, its beginning.

A short last message is the question. In a long one it is the last paragraph with a question mark,
or the last paragraph; lines or sentences if there are no paragraphs. If it has too few content
words ("And why?"), the query also has the end of earlier messages.
"""

from graft.retrieval.bm25 import content_words
from graft.retrieval.chunks import LINE, PARAGRAPH, SENTENCE, cut
from graft.retrieval.contents import Span
from graft.retrieval.token_text import TokenText

MARKS = "?？؟"
MIN_WORDS = 2
MAX_CONTENTS = 3  # messages that a query may use


def tail(text: TokenText, content: Span, max_tokens: int) -> tuple[Span, str]:
    """The span from the question to the end of a content, of at most `max_tokens`; and the text of
    the question."""
    start, end = content
    if end - start <= max_tokens:
        return content, text.of(start, end).strip()
    starts = _unit_starts(text, end - max_tokens, end)
    units = [text.text[a:b] for a, b in zip(starts, [*starts[1:], text.place(end)], strict=True)]
    asking = [number for number, unit in enumerate(units) if _asks(unit)]
    first = number = asking[-1] if asking else len(units) - 1
    while first and len(content_words("".join(units[first : number + 1]))) < MIN_WORDS:
        first -= 1
    return (max(start, text.border(starts[first])), end), "".join(units[first : number + 1]).strip()


def head(text: TokenText, content: Span, max_tokens: int) -> Span:
    """The instruction at the beginning of a content, of at most `max_tokens`."""
    start, end = content
    return start, end if end - start <= max_tokens else cut(text, start + 1, start + max_tokens)


def query(text: TokenText, contents: list[Span], max_tail: int, max_head: int) -> str:
    """The search query."""
    start, end = contents[-1]
    _, question = tail(text, contents[-1], max_tail)
    if end - start > max_tail and not _asks(question):
        first = text.of(*head(text, contents[-1], max_head))
        if _asks(first):
            return first[: max(map(first.rfind, MARKS)) + 1].strip()
    for earlier in contents[-2 : -1 - MAX_CONTENTS : -1]:
        if len(content_words(question)) >= MIN_WORDS:
            break
        question = f"{tail(text, earlier, max_tail)[1]}\n{question}"
    return question


def _asks(unit: str) -> bool:
    return any(mark in unit for mark in MARKS)


def _unit_starts(text: TokenText, start: int, end: int) -> list[int]:
    """Starts of paragraphs, else lines, else sentences; else the start of the tokens."""
    first, last = text.place(start), text.place(end)
    last = first + len(text.text[first:last].rstrip())
    for level in (PARAGRAPH, LINE, SENTENCE):
        starts = [match.end() for match in level.finditer(text.text, first, last)]
        if starts := [place for place in starts if place < last]:
            return starts
    return [first]
