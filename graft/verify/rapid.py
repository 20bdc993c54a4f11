"""RAPID's rules: the drafter, which read retrieved text, pulls the target's distribution towards
its own (Chen et al. 2025).

With the target's p and the drafter's q the shifted target is

    phat = softmax(log p + eta (q - p))

(eq. 6; p is what the sampling parameters leave of the target's logits). Two tail rules say where
the shift holds. `drafter`, the one of the released code: only at tokens with q >= 0.1 max q, so
that where the drafter is sure of one token only that one moves; phat stays a distribution.
`target`, the one printed (eq. 9): tokens with phat < 0.1 max phat get p back; that sums to anything
from 0.6 to 2, and is normalised where it must be a distribution.

`rapid` keeps x with probability min(1, phat(x) / q(x)), else it draws from max(p - phat, p - q, 0).
The paper's proof that this gives p takes p - min(q, phat) for non-negative; it never is unless
p = q. What comes out is

    min(q, phat) + (1 - sum min(q, phat)) * norm(max(p - phat, p - q, 0)),

neither p nor phat, and for large eta nearly q. `rapid-phat` keeps x by the same rule and else draws
from max(phat - q, 0): what comes out is phat exactly. With eta = 0 both are the classic rule and
give p. The token behind a chain that was kept whole comes from p in both: there is no q there.

At temperature 0 the shift, which lives in units of logits over temperature, vanishes: both are
greedy speculative decoding, word for word plain decoding's text. A `margin` m > 0 (our own,
"soft-greedy") keeps a drafted token there if it is the argmax of z + m (q - p) with probabilities
of temperature 1: one that the target gives up to about 2 m less in logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graft.errors import InputError
from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree
from graft.verify.chain import Rule, has_q, judge
from graft.verify.verdict import Promise, Verdict
from graft.verify.walk import walk

TAIL = 0.1  # of the best token's probability: below it a token belongs to the tail
TAILS = ("drafter", "target")


@dataclass(frozen=True, slots=True)
class Shift:
    """How far the drafter pulls: `eta` above temperature 0, `margin` (in logits) at it; `tail`
    says whose unlikely tokens are left where they are."""

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

    def papers(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """See Rule: `rapid`."""
        shifted = self(p, q)
        return shifted, torch.maximum(p - shifted, p - q).clamp(min=0)

    def exact(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """See Rule: `rapid-phat`; the output is phat."""
        shifted = self(p, q)
        shifted = shifted / shifted.sum(-1, keepdim=True)
        return shifted, (shifted - q).clamp(min=0)


@dataclass(frozen=True, slots=True)
class Rapid:
    """A verifier by one of a shift's rules. Trees without q are walked, as everywhere."""

    rule: Rule
    margin: float = 0.0

    def __call__(
        self, tree: DraftTree, logits: Tensor, sampler: Sampler, drawn: Sequence[int] | None = None
    ) -> Verdict:
        """See Verifier."""
        if not has_q(tree) or (sampler.params.greedy and not self.margin):
            return walk(tree, logits, sampler, drawn)
        if sampler.params.greedy:
            found = self._softly_greedy(tree, logits, sampler)
        else:
            found = judge(tree, logits, sampler, self.rule, drawn)
        return Verdict(*found, Promise.OTHER_DISTRIBUTION)

    def _softly_greedy(
        self, tree: DraftTree, logits: Tensor, sampler: Sampler
    ) -> tuple[list[int], int]:
        path, tokens = [0], tree.tokens.tolist()
        for nodes in _together(len(tree), sampler):
            rows = [sampler.scores(logits[node], tokens[1 : node + 1]) for node in nodes]
            scores = torch.stack(rows).float()
            q = tree.probs[nodes[0] : nodes[-1] + 1].to(scores)
            soft = scores + self.margin * (q - scores.softmax(-1))
            chosen, best = torch.stack([soft.argmax(-1), scores.argmax(-1)]).tolist()
            for place, node in enumerate(nodes):
                if node + 1 == len(tree) or chosen[place] != tokens[node + 1]:
                    return path, best[place]
                path.append(node + 1)
        raise AssertionError("a chain has a last node")


def _together(nodes: int, sampler: Sampler) -> list[range]:
    """Nodes whose logits may be looked at at once: a caller's `process` sees one after another."""
    if sampler.foreseeable:
        return [range(nodes)]
    return [range(node, node + 1) for node in range(nodes)]


def rapid(shift: Shift) -> Rapid:
    """The paper's rule."""
    return Rapid(shift.papers, shift.margin)


def rapid_phat(shift: Shift) -> Rapid:
    """The rule that samples the shifted target."""
    return Rapid(shift.exact, shift.margin)
