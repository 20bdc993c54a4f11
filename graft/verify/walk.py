"""The walk: lossless for any draft tree.

At a node, sample a token from the target's distribution; if a child has it, move there, else emit
it and stop. The emitted tokens are sampled exactly as plain decoding samples them, position by
position, so the tree decides only how many of them one forward yields.
"""

from collections.abc import Sequence

from torch import Tensor

from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree
from graft.verify.draws import NOT_DRAWN
from graft.verify.verdict import Verdict


def walk(
    tree: DraftTree, logits: Tensor, sampler: Sampler, drawn: Sequence[int] | None = None
) -> Verdict:
    """See Verifier."""
    children = tree.children
    path = [0]
    ahead: list[int] = []
    while True:
        node = path[-1]
        token = NOT_DRAWN if drawn is None else drawn[node]
        if token == NOT_DRAWN:
            token = sampler.draw(logits[node], ahead)
        child = children[node].get(token)
        if child is None:
            return Verdict(path, token)
        path.append(child)
        ahead.append(token)
