"""Chains that a drafter drew from distributions q of its own: one frame for all rules with q.

A drafted token x is kept with probability min(1, a(x) / q(x)). At the first that is not, a token
is drawn from the residual r, normalised, and the chain ends. A rule says what a and r are, given
the target's p and the drafter's q. Behind a chain that was kept whole there is no q: there the next
token is drawn from p. At a drafted position the output so has the distribution

    min(q, a) + (1 - sum min(q, a)) * r / sum r

which is p for the classic rule (a = p, r = max(p - q, 0)). Whatever draws the chain may choose its
length by tokens already in it, never by those it would leave out: a drawn token that is dropped
because of what it is makes every rule here wrong.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from graft.sampling import ACCEPT, RESIDUAL, Sampler, upload
from graft.tree.draft_tree import DraftTree
from graft.tree.prune import shallow
from graft.verify.draws import NOT_DRAWN, distributions

# (p [..., V], q [..., V]) -> (a [..., V], r [..., V])
Rule = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def has_q(tree: DraftTree) -> bool:
    """Whether there is a drafted token to weigh; other trees are walked."""
    return tree.probs is not None and len(tree) > 1


def output(rule: Rule, p: Tensor, q: Tensor) -> Tensor:
    """The distribution [..., V] of a token that a rule emits at a drafted position."""
    accepts, residual = rule(p, q)
    kept = torch.minimum(q, accepts)
    total = residual.sum(-1, keepdim=True)
    drawn = torch.where(total > 0, residual / total, p)
    return kept + (1 - kept.sum(-1, keepdim=True)) * drawn


def judge(
    tree: DraftTree,
    logits: Tensor,
    sampler: Sampler,
    rule: Rule,
    drawn: Sequence[int] | None = None,
) -> tuple[list[int], int]:
    """The accepted nodes, root first, and the token behind them."""
    if any(parent != node - 1 for node, parent in enumerate(tree.parents.tolist())):
        raise ValueError("rules with q need a chain: siblings drawn from one q are biased")
    path, kept, tokens = [0], [], tree.tokens.tolist()
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
    """The target's distributions at the nodes that have a child, some rows at a time: the first
    node's number and p [n, V]. All at once, but where a caller's `process` must see tokens in
    their order."""
    above, tokens = shallow(tree, len(tree) - 2), tree.tokens[1:].tolist()
    if not sampler.foreseeable:
        for node in range(len(above)):
            yield node, sampler.distribution(logits[node], tokens[:node])[None]
        return
    probs, certain = distributions([(sampler, above)], logits[: len(above)])
    uncertain = (~certain).nonzero()[:, 0].tolist() if sampler.params.top_p < 1 else []
    for node in uncertain:
        probs[node] = sampler.distribution(logits[node], tokens[:node])
    yield 0, probs


def _passed(
    tokens: list[int], ahead: int, weights: tuple[Tensor, Tensor], sampler: Sampler
) -> list[bool]:
    """Which of the drafted tokens their coins let pass, each for itself."""
    accepts, q = weights
    places = upload(torch.tensor(tokens), q.device)[:, None]
    coins = [sampler.uniform(ahead + each, ACCEPT) for each in range(len(tokens))]
    bars = upload(torch.tensor(coins, dtype=torch.float64), q.device)
    kept, drafted = (each.gather(1, places)[:, 0].double() for each in (accepts, q))
    return (bars * drafted < kept).tolist()


def _draw(residual: Tensor, p: Tensor, sampler: Sampler, ahead: int) -> int:
    """A token from the normalised residual; from p where rounding leaves nothing of it."""
    tokens = (residual > 0).nonzero()[:, 0]
    if not len(tokens):
        residual, tokens = p, (p > 0).nonzero()[:, 0]
    return sampler.draw_from(residual[tokens].double().log(), tokens, ahead, RESIDUAL)
