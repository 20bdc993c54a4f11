"""Keep test texts out of training data: no 13 consecutive words in common."""

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from graft.documents.records import read_records

WORDS_IN_A_ROW = 13
WORD = re.compile(r"\w+")
MAX_WORDS = 1 << 20  # in the cache of word numbers
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers keep all bits


class _Numbers(dict[str, int]):
    """A number for every word, cached: three times as fast as crc32."""

    def __missing__(self, word: str) -> int:
        if len(self) > MAX_WORDS:
            self.clear()
        number = self[word] = zlib.crc32(word.encode())
        return number


_NUMBERS = _Numbers()


class Overlap:
    """The word sequences of the texts that must not occur."""

    def __init__(self, texts: Iterable[str]) -> None:
        found = [_sequences(text) for text in texts]
        self._known = np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)

    @classmethod
    def with_files(cls, paths: Iterable[str]) -> "Overlap":
        """With every string in the files' records."""
        return cls(text for record in read_records(paths) for text in texts_in(record.content))

    def __len__(self) -> int:
        return len(self._known)

    def has(self, text: str) -> bool:
        """Whether the text shares a word sequence with them."""
        if not len(self._known):
            return False
        sequences = _sequences(text)
        places = np.searchsorted(self._known, sequences)
        places[places == len(self._known)] = 0
        return bool((self._known[places] == sequences).any())


def texts_in(value: Any) -> Iterator[str]:  # noqa: ANN401 (any JSON)
    """Every string inside a record."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each)


def _sequences(text: str) -> np.ndarray:
    """A hash [n] uint64 of every WORDS_IN_A_ROW words, without case and punctuation."""
    words = WORD.findall(text.lower())
    numbers = np.array([_NUMBERS[word] for word in words], np.uint64)
    count = max(0, len(numbers) - WORDS_IN_A_ROW + 1)
    hashes = np.zeros(count, np.uint64)
    for place in range(WORDS_IN_A_ROW):
        hashes = hashes * FACTOR + numbers[place : place + count]
    return hashes
