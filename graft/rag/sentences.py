"""Sentences and content words of English text.

The policies decide sentence by sentence, and DRAGIN looks at content words alone (nouns,
adjectives, verbs, names, numbers). spaCy's small model finds both where it is installed, as in the
papers; else rules and a list of function words that come with the package. The two split
differently now and then, which changes when a policy retrieves, so results say which was used.
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
    """Who finds sentences and words; `name` goes into results."""

    name: str

    def sentences(self, text: str) -> list[Span]:
        """In order, without the blanks around them; empty ones are left out."""

    def content_words(self, text: str) -> list[Span]:
        """Nouns, adjectives, verbs, names and numbers, in order."""


def may_end_sentence(text: str) -> bool:
    """Whether a sentence may be over at the end of the text: worth asking a `Language`."""
    return _CLOSED.search(text) is not None


@cache
def find_language() -> Language:
    """spaCy's small English model where it is installed, else the bundled rules."""
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
    """Sentences by punctuation and a list of abbreviations; content words are those that are in no
    list of function words and do not end in -ly."""

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
            if match[0].startswith("\n") or not self._goes_on(text, match):
                yield match.end()

    def _goes_on(self, text: str, match: re.Match[str]) -> bool:
        """Whether this is the full stop of an abbreviation, an initial or before a small letter."""
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
    """The words of a file of this package; lines that begin with # say what follows."""
    lines = files("graft.rag").joinpath("words", name).read_text(encoding="utf-8").splitlines()
    return frozenset(w for line in lines if not line.startswith("#") for w in line.split())
