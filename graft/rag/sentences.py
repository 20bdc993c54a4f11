"""Sentences and content words of English text.

Policies decide by sentence, and DRAGIN uses content words only (nouns, adjectives, verbs, names,
numbers). spaCy's small model finds both if it is installed, as in the papers; else the package's
rules and list of function words. They sometimes split differently, which changes when a policy
retrieves, so results name the one used.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

Span = tuple[int, int]  # of characters
SPACY_MODEL = "en_core_web_sm"
CONTENT = frozenset({"NOUN", "ADJ", "VERB", "PROPN", "NUM"})
_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)|\n+")
_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
_LAST_WORD = re.compile(r"[\w.]+$")
_CLOSED = re.compile(r"[.!?…][\"'”’)\]]*\s*$|\n\s*$")


class Language(Protocol):
    """Finds sentences and content words; results have its `name`."""

    name: str

    def sentences(self, text: str) -> list[Span]:
        """Spans of non-empty sentences in order, stripped."""

    def content_words(self, text: str) -> list[Span]:
        """Nouns, adjectives, verbs, names and numbers, in order."""


def may_end_sentence(text: str) -> bool:
    """Whether a sentence may end at the end of the text; a cheap check before `sentences`."""
    return _CLOSED.search(text) is not None


@cache
def find_language() -> Language:
    """spaCy's small English model if it is installed, else the bundled rules."""
    try:
        import spacy

        return SpacyLanguage(spacy.load(SPACY_MODEL))
    except (ImportError, OSError):  # no spaCy, or it has no model
        return BundledLanguage()


class SpacyLanguage:
    """Sentences and parts of speech by a spaCy pipeline."""

    def __init__(self, pipeline: Any) -> None:  # noqa: ANN401 (spaCy is optional)
        self._pipeline = pipeline
        self.name = f"spacy {pipeline.meta['name']} {pipeline.meta['version']}"

    def sentences(self, text: str) -> list[Span]:
        """See Language."""
        spans = [(each.start_char, each.end_char) for each in self._pipeline(text).sents]
        return [span for span in (_stripped(text, *each) for each in spans) if span[0] < span[1]]

    def content_words(self, text: str) -> list[Span]:
        """See Language."""
        tokens = [each for each in self._pipeline(text) if each.pos_ in CONTENT]
        return [(each.idx, each.idx + len(each.text)) for each in tokens]


class BundledLanguage:
    """Sentences by punctuation and a list of abbreviations; content words are those that are not in
    the list of function words and do not end in -ly."""

    name = "bundled"

    def __init__(self) -> None:
        self._abbreviations = _listed("abbreviations.txt")
        self._function_words = _listed("function_words.txt")
        self._not_adverbs = _listed("ly_words.txt")

    def sentences(self, text: str) -> list[Span]:
        """See Language."""
        cuts = [0, *self._ends(text), len(text)]
        spans = [_stripped(text, *each) for each in zip(cuts, cuts[1:], strict=False)]
        return [span for span in spans if span[0] < span[1]]

    def content_words(self, text: str) -> list[Span]:
        """See Language."""
        return [match.span() for match in _WORD.finditer(text) if self._is_content(match[0])]

    def _ends(self, text: str) -> Iterator[int]:
        for match in _END.finditer(text):
            if match[0].startswith("\n") or not self._continues(text, match):
                yield match.end()

    def _continues(self, text: str, match: re.Match[str]) -> bool:
        """Whether the full stop belongs to an abbreviation, an initial or precedes lower case."""
        following = text[match.end() :].lstrip()
        if following and following[0].islower():
            return True
        if match[0] != ".":
            return False
        before = _LAST_WORD.search(text[: match.start()])
        word = before[0] if before else ""
        initial = len(word.rpartition(".")[2]) == 1 and word[-1].isupper() and word != "I"
        return initial or word.lower() in self._abbreviations

    def _is_content(self, word: str) -> bool:
        lower = word.lower().replace("’", "'")
        stem = lower.partition("'")[0]
        if lower in self._function_words or stem in self._function_words:
            return False
        return not stem.endswith("ly") or len(stem) < 4 or stem in self._not_adverbs


def _stripped(text: str, start: int, end: int) -> Span:
    inside = text[start:end]
    return start + len(inside) - len(inside.lstrip()), start + len(inside.rstrip())


def _listed(name: str) -> frozenset[str]:
    """The words of a file of this package, without comment lines (#)."""
    lines = files("graft.rag").joinpath("words", name).read_text(encoding="utf-8").splitlines()
    return frozenset(w for line in lines if not line.startswith("#") for w in line.split())
