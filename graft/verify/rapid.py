"""RAPID's rules: a drafter that sees retrieved text shifts the target's distribution towards its
own (Chen et al. 2025).

With the target's p and the drafter's q the shifted target is

    phat = softmax(log p + eta (q - p))

(eq. 6; p is the target's distribution after the sampling parameters). Two tail rules limit the
shift. `drafter`, the rule of the released code, shifts only tokens with q >= 0.1 max q; phat stays
a distribution. `target`, the printed rule (eq. 9), resets tokens with phat < 0.1 max phat to p; the
sum is then anything from 0.6 to 2, and is normalised where a distribution is needed.

`rapid` accepts x with probability min(1, phat(x) / q(x)) and else samples from
max(p - phat, p - q, 0). The paper's proof that the output is p assumes that p - min(q, phat) is
non-negative, which holds only for p = q. The output is

    min(q, phat) + (1 - sum min(q, phat)) * norm(max(p - phat, p - q, 0)),

neither p nor phat, and for large eta nearly q. `rapid-phat` accepts by the same rule and else
samples from max(phat - q, 0): its output is phat exactly. With eta = 0 both equal the classic rule
and give p. The token after a chain that is accepted whole comes from p in both: there is no q.

At temperature 0 the shift, which is in units of logits over temperature, vanishes: both are greedy
speculative decoding, with plain decoding's text. A `margin` m > 0 (not in the paper: "soft-greedy")
accepts a draft token there if it is the argmax of z + m (q - p) with probabilities of temperature
1: a token whose logit is up to about 2 m below the target's best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from graft.errors import InputError
from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree
from graft.verify.chain import has_q, judge
from graft.verify.verdict import Promise, Verdict, Verifier
from graft.verify.walk import walk

TAIL = 0.1  # of the best token's probability: below it a token belongs to the tail
TAILS = ("drafter", "target")


@dataclass(frozen=True, slots=True)
class Shift:
    """How far the verifiers `rapid` and `rapid-phat` shift the target towards the drafter.

    `eta` applies above temperature 0, `margin` (in logits) at temperature 0. `tail` ("drafter" or
    "target") says whose unlikely tokens are not shifted. Raises InputError for values out of range.
    """

    eta: float = 10.0
    tail: str = "drafter"
    margin: float = 0.0

    def __post_init__(self) -> None:
        if self.tail not in TAILS:
            raise InputError(f"unknown tail rule {self.tail!r}; choose one of {', '.join(TAILS)}")
        for name in ("eta", "margin"):
            value = getattr(self, name)
            if not 0 <= value <= 1000:
                raise InputError(f"{name} must be between 0 and 1000, not {value}")

    def __call__(self, p: Tensor, q: Tensor) -> Tensor:
        """phat [..., V]; by the `target` rule it need not sum to 1."""
        if not self.eta:
            return p
        pull = self.eta * (q - p)
        if self.tail == "drafter":
            pull = pull * (q >= TAIL * q.amax(-1, keepdim=True))
        shifted = (p.log() + pull).softmax(-1)
        if self.tail == "target":
            rare = shifted < TAIL * shifted.amax(-1, keepdim=True)
            shifted = torch.where(rare, p, shifted)
        return shifted

    def paper_rule(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """See Rule: `rapid`."""
        shifted = self(p, q)
        return shifted, torch.maximum(p - shifted, p - q).clamp(min=0)

    def phat_rule(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """See Rule: `rapid-phat`; the output is phat."""
        shifted = self(p, q)
        shifted = shifted / shifted.sum(-1, keepdim=True)
        return shifted, (shifted - q).clamp(min=0)


@runtime_checkable
class Shifting(Protocol):
    """A verifier that shifts the target's distribution."""

    @property
    def shift(self) -> Shift:
        """How far."""

    def with_shift(self, shift: Shift) -> Verifier:
        """The same verifier with another shift."""


@dataclass(frozen=True, slots=True)
class Rapid:
    """A verifier with one of the rules of Shift; trees without q are walked."""

    shift: Shift
    rule: Callable[[Shift, Tensor, Tensor], tuple[Tensor, Tensor]]

    def with_shift(self, shift: Shift) -> "Rapid":
        """See Shifting."""
        return replace(self, shift=shift)

    def __call__(
        self, tree: DraftTree, logits: Tensor, sampler: Sampler, drawn: Sequence[int] | None = None
    ) -> Verdict:
        """See Verifier."""
        if not has_q(tree) or (sampler.params.greedy and not self.shift.margin):
            return walk(tree, logits, sampler, drawn)
        if sampler.params.greedy:
            found = self._soft_greedy(tree, logits, sampler)
        else:
            found = judge(tree, logits, sampler, partial(self.rule, self.shift), drawn)
        return Verdict(*found, Promise.OTHER_DISTRIBUTION)

    def _soft_greedy(
        self, tree: DraftTree, logits: Tensor, sampler: Sampler
    ) -> tuple[list[int], int]:
        assert tree.probs is not None
        path, tokens = [0], tree.tokens.tolist()
        for nodes in _batches(len(tree), sampler):
            rows = [sampler.scores(logits[node], tokens[1 : node + 1]) for node in nodes]
            scores = torch.stack(rows).float()
            q = tree.probs[nodes[0] : nodes[-1] + 1].to(scores)
            soft = scores + self.shift.margin * (q - scores.softmax(-1))
            chosen, best = torch.stack([soft.argmax(-1), scores.argmax(-1)]).tolist()
            for place, node in enumerate(nodes):
                if node + 1 == len(tree) or chosen[place] != tokens[node + 1]:
                    return path, best[place]
                path.append(node + 1)
        raise AssertionError("a chain has a last node")


def _batches(nodes: int, sampler: Sampler) -> list[range]:
    """Nodes that can be computed at once; a caller's `process` must see them one by one."""
    if sampler.batchable:
        return [range(nodes)]
    return [range(node, node + 1) for node in range(nodes)]
