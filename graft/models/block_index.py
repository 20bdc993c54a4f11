"""A trie of texts in whole blocks: finds the texts that share a prefix."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from graft.models.arena import BLOCK, Extent


@dataclass(slots=True)
class _Node:
    """A shared prefix: the extents of its texts, and their next blocks."""

    extents: dict[Extent, None] = field(default_factory=dict)  # in the order they were added
    following: "dict[bytes, _Node]" = field(default_factory=dict)


class BlockIndex:
    """Extents by the tokens they hold, or are about to hold."""

    def __init__(self) -> None:
        self._start = _Node()

    def __bool__(self) -> bool:
        return bool(self._start.following)

    def add(self, tokens: np.ndarray, extent: Extent) -> None:
        """Register the extent for these tokens."""
        node = self._start
        for block in _blocks(tokens):
            node = node.following.setdefault(block, _Node())
            node.extents[extent] = None

    def remove(self, tokens: np.ndarray, extent: Extent) -> None:
        """Remove an extent that was added with the same tokens."""
        node = self._start
        for block in _blocks(tokens):
            following = node.following[block]
            del following.extents[extent]
            if not following.extents:
                del node.following[block]  # with its subtree, which holds no other extent
                return
            node = following

    def common(self, tokens: np.ndarray) -> int:
        """Length of the longest prefix of `tokens` that was added."""
        return BLOCK * sum(1 for _ in self._along(tokens))

    def beginning_with(self, tokens: np.ndarray) -> list[Extent]:
        """The extents whose texts begin with these whole blocks."""
        nodes = list(self._along(tokens))
        return list(nodes[-1].extents) if nodes and len(nodes) * BLOCK == len(tokens) else []

    def longest(self, tokens: np.ndarray) -> tuple[Extent | None, int]:
        """The extent with the longest committed prefix of `tokens`, and its length."""
        nodes = list(self._along(tokens))
        for count in range(len(nodes), 0, -1):
            for extent in nodes[count - 1].extents:
                if extent.total >= count * BLOCK:
                    return extent, count * BLOCK
        return None, 0

    def _along(self, tokens: np.ndarray) -> Iterator[_Node]:
        node = self._start
        for block in _blocks(tokens):
            if block not in node.following:
                return
            node = node.following[block]
            yield node


def _blocks(tokens: np.ndarray) -> Iterator[bytes]:
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        yield tokens[start : start + BLOCK].tobytes()
