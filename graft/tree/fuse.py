"""Grafting: two trees under one root become one, nodes in common kept once."""

import numpy as np

from graft.tree.draft_tree import DraftTree, in_level_order


def union(first: DraftTree, second: DraftTree) -> DraftTree:
    """Every path of both trees. A node of both keeps the better score and the first's source."""
    if first.tokens[0] != second.tokens[0]:
        raise ValueError("trees with different roots cannot be joined")
    names = list(dict.fromkeys((*first.source_names, *second.source_names)))
    tokens, parents = first.tokens.tolist(), first.parents.tolist()
    scores = first.scores.tolist()
    sources = [names.index(first.source(i)) for i in range(len(first))]
    children = first.children()
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
            children.append({})
        scores[node] = max(scores[node], float(second.scores[i]))
        place[i] = node
    return in_level_order(
        np.array(tokens), np.array(parents), np.array(scores), np.array(sources), tuple(names)
    )
