"""Grafting: two trees under one root become one, nodes in common kept once."""

import numpy as np

from graft.tree.draft_tree import DraftTree, in_level_order

BOTH = "both"  # the source of nodes that several drafters guessed


def union(first: DraftTree, second: DraftTree) -> DraftTree:
    """Every path of both trees.

    A node of both keeps the better score; its source is `BOTH` where two drafters claim it, and
    the one who does where only one names itself. Where it was copied from is kept.
    """
    if first.tokens[0] != second.tokens[0]:
        raise ValueError("trees with different roots cannot be joined")
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
        sources[node] = _place(_joint(names[sources[node]], second.source(i)), names)
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


def _place(name: str, names: list[str]) -> int:
    """Where a name stands among the others; at their end from now on, if it is new."""
    if name not in names:
        names.append(name)
    return names.index(name)


def _joint(first: str, second: str) -> str:
    return (first or second) if first == second or not (first and second) else BOTH
