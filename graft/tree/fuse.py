"""Merging two draft trees under one root; common nodes are kept once."""

import numpy as np

from graft.tree.draft_tree import DraftTree, in_level_order

BOTH = "both"  # the source of nodes that several drafters proposed


def union(first: DraftTree, second: DraftTree) -> DraftTree:
    """A tree with every path of both.

    A common node gets the higher score. Its source is `BOTH` if two drafters proposed it, or the
    only named one. Places of copied tokens are kept.
    """
    if first.tokens[0] != second.tokens[0]:
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
    place = [0] * len(second)
    for i in range(1, len(second)):
        parent, token = place[second.parents[i]], int(second.tokens[i])
        node = children[parent].get(token)
        if node is None:
            node = children[parent][token] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            scores.append(float(second.scores[i]))
            sources.append(names.index(second.source(i)))
            places.append(others[i])
            children.append({})
        scores[node] = max(scores[node], float(second.scores[i]))
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
