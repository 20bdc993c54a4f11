"""No fusion: retrieved branches beside the network's tree, not merged with it (RASD, table 3).

Apart, a node that both have is computed twice. The longest right path is the same, so the output
and the accepted tokens are: fusing saves the duplicates' time and nothing else. A draft tree must
not have equal siblings; so dummies are computed in place of the duplicates, as many at the same
depths with as many ancestors. What is timed is the draft, the merging and a step of so many nodes;
picking the longest of several right paths, which dummies do not need, is not.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from graft.draft.combined import Prune
from graft.draft.drafter import Budget, DraftContext
from graft.tree.draft_tree import DraftTree, in_level_order
from graft.tree.fuse import BOTH
from graft.tree.prune import cut

DUMMY = "dummy"  # the source of nodes that only take time


@dataclass(frozen=True)
class Apart:
    """A pruning rule without fusion; the last of the trees is the network's."""

    prune: Prune
    vocabulary: int

    def __call__(
        self, contexts: list[DraftContext], proposed: list[list[DraftTree]], budget: Budget
    ) -> list[DraftTree]:
        """As the inner rule, with dummies for duplicates."""
        pruned = self.prune(contexts, proposed, budget)
        return [
            cut(with_duplicates(tree, parts[-1].source_names, self.vocabulary), budget.nodes)
            for tree, parts in zip(pruned, proposed, strict=True)
        ]


def with_duplicates(tree: DraftTree, own: Collection[str], vocabulary: int) -> DraftTree:
    """The tree with a dummy for every node of the network, whose sources are `own`, that is on the
    path of a retrieved node. Their first tokens are the last ones of the vocabulary."""
    retrieved = {0}
    for node in range(len(tree) - 1, 0, -1):
        if node in retrieved or tree.source(node) not in own:
            retrieved |= {node, int(tree.parents[node])}
    twice = [node for node in sorted(retrieved - {0}) if tree.source(node) in (*own, BOTH)]
    if not twice:
        return tree
    place = {0: 0} | {node: len(tree) + n for n, node in enumerate(twice)}
    parents = [place[int(tree.parents[node])] for node in twice]
    unused = (token for token in reversed(range(vocabulary)) if token not in tree.children[0])
    pairs = zip(twice, parents, strict=True)
    tokens = [int(tree.tokens[node]) if parent else next(unused) for node, parent in pairs]
    return in_level_order(
        np.append(tree.tokens, tokens),
        np.append(tree.parents, parents),
        np.append(tree.scores, tree.scores[twice]),
        np.append(tree.sources, [len(tree.source_names)] * len(twice)),
        (*tree.source_names, DUMMY),
        np.append(tree.all_places(), [-1] * len(twice)),
    )
