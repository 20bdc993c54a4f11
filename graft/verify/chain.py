"""Verification of chains that a drafter sampled from its own distributions q.

A draft token x is accepted with probability min(1, a(x) / q(x)). At the first rejection a token is
sampled from the normalised residual r, and the chain ends. A rule gives a and r for the target's p
and the drafter's q. After a chain that is accepted whole there is no q: the next token is sampled
from p. At a drafted position the output has the distribution

    min(q, a) + (1 - sum min(q, a)) * r / sum r

which is p for the classic rule (a = p, r = max(p - q, 0)). A drafter may choose the chain's length
by the tokens already in it, never by a token it would leave out: dropping a sampled token because
of its value makes every rule here wrong.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from graft.sampling import ACCEPT, RESIDUAL, Sampler, upload
from graft.tree.draft_tree import DraftTree
from graft.tree.prune import shallow
from graft.verify.draws import NOT_DRAWN, distributions
from graft.verify.verdict import Promise, Verdict
from graft.verify.walk import walk

# (p [..., V], q [..., V]) -> (a [..., V], r [..., V])
Rule = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def has_q(tree: DraftTree) -> bool:
    """Whether a rule with q applies; other trees are walked."""
    return tree.probs is not None and len(tree) > 1


def judge(
    tree: DraftTree,
    logits: Tensor,
    sampler: Sampler,
    rule: Rule,
    drawn: Sequence[int] | None = None,
) -> tuple[list[int], int]:
    """The accepted nodes, root first, and the token after them."""
    if any(parent != node - 1 for node, parent in enumerate(tree.parents.tolist())):
        raise ValueError("rules with q need a chain: siblings sampled from one q are biased")
    assert tree.probs is not None
    path, tokens = [0], tree.tokens.tolist()
    kept: list[int] = []
    for first, p in _targets(tree, logits, sampler):
        q = tree.probs[first : first + len(p)].to(p)
        accepts, residual = rule(p, q)
        passed = _passed(tokens[first + 1 : first + 1 + len(p)], first, (accepts, q), sampler)
        for row, passes in enumerate(passed):
            if not passes:
                return path, _draw(residual[row], p[row], sampler, len(kept))
            path.append(first + row + 1)
            kept.append(tokens[path[-1]])
    token = NOT_DRAWN if drawn is None else drawn[path[-1]]
    return path, sampler.draw(logits[path[-1]], kept) if token == NOT_DRAWN else token


def _targets(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Iterator[tuple[int, Tensor]]:
    """The target's distributions at the nodes that have a child: the first node's number and
    p [n, V]. One batch, or one node at a time if a caller's `process` must see tokens in order."""
    above, tokens = shallow(tree, len(tree) - 2), tree.tokens[1:].tolist()
    if not sampler.batchable:
        for node in range(len(above)):
            yield node, sampler.distribution(logits[node], tokens[:node])[None]
        return
    probs, exact = distributions([(sampler, above)], logits[: len(above)])
    inexact = (~exact).nonzero()[:, 0].tolist() if sampler.params.top_p < 1 else []
    for node in inexact:
        probs[node] = sampler.distribution(logits[node], tokens[:node])
    yield 0, probs


def _passed(
    tokens: list[int], ahead: int, weights: tuple[Tensor, Tensor], sampler: Sampler
) -> list[bool]:
    """Which of the draft tokens pass their random test, each on its own."""
    accepts, q = weights
    places = upload(torch.tensor(tokens), q.device)[:, None]
    uniform = [sampler.uniform(ahead + each, ACCEPT) for each in range(len(tokens))]
    thresholds = upload(torch.tensor(uniform, dtype=torch.float64), q.device)
    kept, drafted = (each.gather(1, places)[:, 0].double() for each in (accepts, q))
    return (thresholds * drafted < kept).tolist()


def _draw(residual: Tensor, p: Tensor, sampler: Sampler, ahead: int) -> int:
    """A token from the normalised residual; from p if rounding makes the residual zero."""
    tokens = (residual > 0).nonzero()[:, 0]
    if not len(tokens):
        residual, tokens = p, (p > 0).nonzero()[:, 0]
    return sampler.draw_from(residual[tokens].double().log(), tokens, ahead, RESIDUAL)


def classic(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """See Rule: the output is p."""
    return p, (p - q).clamp(min=0)


def rejection(
    tree: DraftTree, logits: Tensor, sampler: Sampler, drawn: Sequence[int] | None = None
) -> Verdict:
    """Speculative sampling (Leviathan et al. 2023; Chen et al. 2023). See Verifier.

    The output has the target's distribution, and plain decoding's text only at temperature 0.
    """
    if not has_q(tree) or sampler.params.greedy:
        return walk(tree, logits, sampler, drawn)
    return Verdict(*judge(tree, logits, sampler, classic, drawn), Promise.SAME_DISTRIBUTION)
