"""The classic rule of speculative sampling, for chains that a drafter sampled from known q.

Keep a drafted token x with probability min(1, p(x) / q(x)); at the first rejection draw from the
normalised max(p - q, 0) (Leviathan et al. 2023; Chen et al. 2023). The output has the target's
distribution but is not the text plain decoding draws with the same seed; at temperature 0 it is.
Nodes without q are tested by the walk's rule.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from graft.sampling import ACCEPT, RESIDUAL, Sampler
from graft.tree.draft_tree import DraftTree
from graft.verify.verdict import Verdict
from graft.verify.walk import walk


def rejection(
    tree: DraftTree, logits: Tensor, sampler: Sampler, drawn: Sequence[int] | None = None
) -> Verdict:
    """See Verifier."""
    if tree.probs is None or sampler.params.greedy:
        return walk(tree, logits, sampler, drawn)
    if any(tree.parents[i] != i - 1 for i in range(len(tree))):
        raise ValueError("the rejection rule needs a chain: siblings drawn from one q are biased")
    path, kept = [0], []
    for child in range(1, len(tree)):
        p = sampler.distribution(logits[path[-1]], kept)
        q = tree.probs[path[-1]].to(p)
        token = int(tree.tokens[child])
        if sampler.uniform(len(kept), ACCEPT) * float(q[token]) >= float(p[token]):
            return Verdict(path, _draw_residual(p, q, sampler, len(kept)))
        path.append(child)
        kept.append(token)
    return Verdict(path, sampler.draw(logits[path[-1]], kept))


def _draw_residual(p: Tensor, q: Tensor, sampler: Sampler, ahead: int) -> int:
    """A token from the normalised max(p - q, 0); from p where rounding leaves nothing."""
    residual = (p.double() - q.double()).clamp(min=0)
    tokens = residual.nonzero()[:, 0]
    if not len(tokens):
        residual, tokens = p.double(), p.nonzero()[:, 0]
    return sampler.draw_from(torch.log(residual[tokens]), tokens, ahead, RESIDUAL)
