"""REST's choice of continuations (He et al., 2023), for comparison with its published figures.

The first 5,000 places of the longest match, in the order of the suffix array; all prefixes of
their next 10 tokens counted; the 64 most frequent kept; then those with the most distinct tokens
dropped until the numbers of distinct tokens add up to at most 64. Unlike REST, nothing continues
across documents, equal counts go to the prefix met first, and no match gives no draft.
"""

import numpy as np

from graft.match.continuations import COUNT, DEPTH, ELSEWHERE, PARENT, TOKEN, TOTAL, Continuations
from graft.match.matches import Matches, as_matches
from graft.match.suffix_array import RecentTokens, Store

PLACES = 5000
LENGTH = 10
CHOICES = 64


class RestIndex(RecentTokens):
    """A TokenIndex over a store; a score is the share of the places with that continuation."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._trie = Continuations(PLACES * max(1, len(store.manifest.shards)), LENGTH)

    def lookup(self, limit: int, confidence: np.ndarray) -> Matches:
        """At most `limit` of REST's choices, most frequent first; trust plays no part."""
        hits = self._store.search(self.tokens)
        self._store.count_first(hits, self._trie, most=PLACES)
        nodes = self._trie.nodes
        chosen = _choices(nodes)[:limit]
        place = {node: at for at, node in enumerate(chosen)} | {0: -1}
        parents = nodes[chosen, PARENT]
        fields = np.array(
            [
                nodes[chosen, TOKEN],
                [place[parent] for parent in parents.tolist()],
                hits.length + nodes[parents, DEPTH],
                nodes[chosen, COUNT],
                nodes[parents, TOTAL],
                np.full(len(chosen), ELSEWHERE),
            ],
            dtype=np.int32,
        )
        scores = (nodes[chosen, COUNT] / max(nodes[0, TOTAL], 1)).astype(np.float32)
        return as_matches(fields, scores, len(chosen))


def _choices(nodes: np.ndarray) -> list[int]:
    """The nodes kept, most frequent first and parents before children."""
    ranked = np.argsort(-nodes[1:, COUNT], kind="stable")[:CHOICES] + 1
    distinct = {node: len(set(_path(nodes, node))) for node in ranked.tolist()}
    total = sum(distinct.values())
    kept = set(distinct)
    # The deepest first among equals, so that no node outlives its parent.
    for node in sorted(distinct, key=lambda each: (distinct[each], nodes[each, DEPTH]))[::-1]:
        if total <= CHOICES:
            break
        kept.remove(node)
        total -= distinct[node]
    return [node for node in distinct if node in kept]


def _path(nodes: np.ndarray, node: int) -> list[int]:
    """The tokens of a continuation, backwards."""
    tokens = []
    while node:
        tokens.append(int(nodes[node, TOKEN]))
        node = int(nodes[node, PARENT])
    return tokens
