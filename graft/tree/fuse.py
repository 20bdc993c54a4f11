"""Merging two draft trees under one root; common nodes are kept once."""

import numpy as np

from graft.tree.draft_tree import DraftTree, in_level_order

BOTH = "both"  # the source of nodes that several drafters proposed


def union(first: DraftTree, second: DraftTree, at: int = 0) -> DraftTree:
    """A tree with every path of both; the root of the second is node `at` of the first.

    A common node gets the higher score. Its source is `BOTH` if two drafters proposed it, or the
    only named one. Places of copied tokens are kept.
    """
    if first.tokens[at] != second.tokens[0]:
        raise ValueError("trees with different roots cannot be merged")
    if len(second) == 1:
        return first
    if len(first) == 1:
        return second
    names = list(dict.fromkeys((*first.source_names, *second.source_names)))
    tokens, parents = first.tokens.tolist(), first.parents.tolist()
    scores = first.scores.tolist()
    sources = [names.index(first.source(i)) for i in range(len(first))]
    places, others = first.all_places(), second.all_places()
    children = [dict(each) for each in first.children]
    second_scores = (first.scores[at] * second.scores).tolist()
    place = [at] * len(second)
    for i in range(1, len(second)):
        parent, token = place[second.parents[i]], int(second.tokens[i])
        node = children[parent].get(token)
        if node is None:
            node = children[parent][token] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            scores.append(second_scores[i])
            sources.append(names.index(second.source(i)))
            places.append(others[i])
            children.append({})
        scores[node] = max(scores[node], second_scores[i])
        sources[node] = _index(_common_source(names[sources[node]], second.source(i)), names)
        places[node] = max(places[node], others[i])
        place[i] = node
    return in_level_order(
        np.array(tokens),
        np.array(parents),
        np.array(scores),
        np.array(sources),
        tuple(names),
        np.array(places),
    )


def _index(name: str, names: list[str]) -> int:
    """The index of a name, which is appended if it is new."""
    if name not in names:
        names.append(name)
    return names.index(name)


def _common_source(first: str, second: str) -> str:
    return (first or second) if first == second or not (first and second) else BOTH
