"""Speculative sampling's rejection rule, for chains that a drafter sampled from known q.

Accept a draft token x with probability min(1, p(x) / q(x)); at the first rejection sample from the
normalised max(p - q, 0) (Leviathan et al. 2023; Chen et al. 2023). The output has the target's
distribution p, but not plain decoding's text for the same seed, except at temperature 0. Trees
without q are walked.
"""

from collections.abc import Sequence

from torch import Tensor

from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree
from graft.verify.chain import has_q, judge
from graft.verify.verdict import Promise, Verdict
from graft.verify.walk import walk


def classic(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """See Rule: the output is p."""
    return p, (p - q).clamp(min=0)


def rejection(
    tree: DraftTree, logits: Tensor, sampler: Sampler, drawn: Sequence[int] | None = None
) -> Verdict:
    """See Verifier."""
    if not has_q(tree) or sampler.params.greedy:
        return walk(tree, logits, sampler, drawn)
    return Verdict(*judge(tree, logits, sampler, classic, drawn), Promise.SAME_DISTRIBUTION)
