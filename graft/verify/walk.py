"""The walk: exact for any tree, whoever drew it.

At a node draw a token from the target's own distribution; if it is a child, go there, else emit it
and stop. The emitted tokens are drawn exactly as plain decoding draws them, position by position,
so the tree decides only how many of them one forward pass yields.
"""

from torch import Tensor

from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree
from graft.verify.verdict import Verdict


def walk(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Verdict:
    """See Verifier."""
    children = tree.children()
    path, drawn = [0], []
    while True:
        token = sampler.draw(logits[path[-1]], drawn)
        child = children[path[-1]].get(token)
        if child is None:
            return Verdict(path, token)
        path.append(child)
        drawn.append(token)
