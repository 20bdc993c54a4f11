"""The draft trees of SGLang's requests.

Every request has an index of its own text and texts. Where that has no confident copy, datastores
and corpora are searched, then the pool of earlier answers. Drafts depend on tokens alone, so all
ranks of a tensor-parallel server make the same.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graft.draft.copies.calibration import STORE_PRIOR
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.copies.pooled import CopiesAndPool, pool_lookups
from graft.draft.copies.texts import learn, matched_spans
from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.budget import up_to_limit
from graft.integrations.sglang_corpora import Corpora
from graft.integrations.sglang_fields import NO_TEXTS, Texts
from graft.match.pool import Pools
from graft.match.suffix_array import Store
from graft.match.suffix_automaton import SuffixAutomaton
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, root_only
from graft.tree.prune import keep, strongest

FILLER = 0  # token of padding nodes: children of the root, or of a chain's last token
NOTHING = 0, root_only(FILLER)  # of a request without tokens
EXAMPLE = [0, 1, 2, 3, 0, 1, 2, 4, 0, 1, 2, 3]  # has copies that go on in two ways


@dataclass(frozen=True, slots=True)
class Running:
    """A request of SGLang; `output` and the tokens `in_flight` after it end with the root, if all
    are known. `texts` are read when it is new."""

    name: str
    prompt: Sequence[int]
    output: Sequence[int]
    texts: Texts = NO_TEXTS
    salt: str = ""
    in_flight: Sequence[int] = ()

    def after(self, known: int) -> list[int]:
        """The answer without its first tokens that are known."""
        return [*self.output[known:], *self.in_flight[max(known - len(self.output), 0) :]]


class Trees:
    """Draft trees of at most `nodes` nodes, the root included; chains have one branch."""

    def __init__(
        self,
        nodes: int,
        pools: Pools | None = None,
        corpora: Corpora | None = None,
        *,
        chains: bool = False,
    ) -> None:
        self._nodes, self._pools, self._corpora = nodes, pools, corpora
        self._chains = chains
        self._drafter: LookupDrafter | CopiesAndPool = LookupDrafter(
            lambda _: SuffixAutomaton(), up_to_limit, nodes=nodes - 1, calibrated=True
        )
        self._stores: dict[int, Store] = {}  # by sequence: its datastores and corpora
        if corpora:
            stored = LookupDrafter(
                lambda context: self._stores[context.sequence].index(),
                up_to_limit,
                nodes=nodes - 1,
                calibrated=True,
                prior=STORE_PRIOR,
                spans=matched_spans,
            )
            self._drafter = CopiesAndPool(self._drafter, stored)
        if pools:
            self._drafter = CopiesAndPool(self._drafter, pool_lookups(pools, nodes - 1))
        self._contexts: dict[str, DraftContext] = {}
        self._proposed: dict[str, tuple[int, DraftTree]] = {}  # by request: its tokens, its tree
        self._numbers = itertools.count()

    def __contains__(self, name: object) -> bool:
        """Whether this request is indexed already."""
        return name in self._contexts

    @property
    def share_texts(self) -> bool:
        """Whether requests also draft from texts of all."""
        return bool(self._pools) or (self._corpora is not None and not self._corpora.empty)

    def warm_up(self) -> None:
        """Draft for an example, so that no request waits for kernels that are compiled."""
        corpora = self._corpora.like(EXAMPLE) if self._corpora else None
        trees = Trees(self._nodes, Pools() if self._pools else None, corpora, chains=self._chains)
        texts = Texts(documents=[EXAMPLE], prediction=EXAMPLE)
        for names in (["first"], ["second", "third"]):  # these find the first one's answer
            for length in range(1, len(EXAMPLE)):
                answer = EXAMPLE[:length]
                trees.draft([Running(name, EXAMPLE, answer, texts) for name in names], 2)
            trees.update_async()
            trees.keep(())

    def expected(self, requests: Sequence[Running], skipped: int = 0) -> Callable[[int], float]:
        """Of a number of draft tokens for each request: how many of all are expected to be
        accepted, less the `skipped` first of each, whose places other tokens take."""
        sums = np.zeros((len(requests), self._nodes))
        for row, tree in zip(sums, self._trees(requests), strict=True):
            best = np.cumsum(-np.sort(-tree.scores[1:]))
            row[1 : len(tree)] = best
            row[len(tree) :] = best[-1] if len(best) else 0.0
        accepted = sums.sum(0)

        def of_width(width: int) -> float:
            return float(accepted[min(width + skipped, self._nodes - 1)] - accepted[skipped])

        return of_width

    def draft(
        self, requests: Sequence[Running], nodes: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [B * N] and the ancestor mask [B * N * N] of trees of exactly N nodes, flattened
        as SGLang takes them."""
        nodes = nodes or self._nodes
        kept = (strongest(tree, nodes - 1) for tree in self._trees(requests))
        padded = [_padded(tree, nodes, chain=self._chains) for tree in kept]
        tokens = np.concatenate([tokens for tokens, _ in padded])
        return tokens, np.concatenate([mask.ravel() for _, mask in padded])

    def _trees(self, requests: Sequence[Running]) -> list[DraftTree]:
        """The largest trees of the requests; those proposed already, unless there are new
        tokens. A request without any has no root yet."""
        contexts = [self._context(request) for request in requests]
        made = [self._proposed.get(request.name, NOTHING)[0] for request in requests]
        new = [i for i, context in enumerate(contexts) if made[i] != len(context.tokens)]
        if new:
            free = Budget(self._nodes - 1, np.ones(1 + len(new) * self._nodes))
            trees = self._drafter.propose([contexts[i] for i in new], free)
            for i, tree in zip(new, map(_chain, trees) if self._chains else trees, strict=True):
                self._proposed[requests[i].name] = len(contexts[i].tokens), tree
        return [self._proposed.get(request.name, NOTHING)[1] for request in requests]

    def keep(self, names: Iterable[str]) -> None:
        """Drop all other requests; one that returns is indexed again."""
        kept = set(names)
        for name in [name for name in self._contexts if name not in kept]:
            self.drop(name)

    def drop(self, name: str) -> None:
        """Forget a request and its texts; the pool keeps its answer."""
        context = self._contexts.pop(name, None)
        self._proposed.pop(name, None)
        if context is None:
            return
        self._drafter.finish(context.sequence)
        self._stores.pop(context.sequence, None)
        if self._pools:
            learn(self._pools, context, context.tokens)

    def update_async(self) -> None:
        """Update the calibration; called while the device computes the step."""
        self._drafter.update_async()

    def close(self) -> None:
        """Forget all requests; write the pool to its folder."""
        self.keep(())
        if self._pools:
            self._pools.close()

    def _context(self, request: Running) -> DraftContext:
        context = self._contexts.get(request.name)
        if context is not None:
            new = request.after(len(context.tokens))
            context.tokens += new
            if new:
                self._drafter.observe([TargetStep(context.sequence, new)])
            return context
        prompt = list(request.prompt)
        context = DraftContext(
            next(self._numbers),
            prompt,
            [(0, len(prompt))],
            documents=[list(document) for document in request.texts.documents],
            prediction=list(request.texts.prediction),
            tokens=request.after(0),
            salt=request.salt,
        )
        self._contexts[request.name] = context
        if self._corpora:
            self._stores[context.sequence] = self._corpora.store(request.texts.corpora)
        self._drafter.start(context)
        return context


def _chain(tree: DraftTree) -> DraftTree:
    """The branch of which most tokens are expected to be accepted."""
    worth = tree.scores.astype(np.float64)
    child = [0] * len(tree)  # the best one; 0: none
    for node in range(len(tree) - 1, 0, -1):
        parent = int(tree.parents[node])
        worth[node] += worth[child[node]] if child[node] else 0.0
        if not child[parent] or worth[node] >= worth[child[parent]]:
            child[parent] = node
    branch = [0]
    while child[branch[-1]]:
        branch.append(child[branch[-1]])
    return keep(tree, branch)


def _padded(tree: DraftTree, nodes: int, *, chain: bool) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [N] and ancestors [N, N] of a tree padded to `nodes` nodes.

    Attention to a chain may be plain causal attention, so its padding continues it.
    """
    missing = nodes - len(tree)
    tokens = np.concatenate([tree.tokens, np.full(missing, FILLER)]).astype(np.int64)
    if chain:
        return tokens, np.tri(nodes, dtype=bool)
    mask = np.eye(nodes, dtype=bool)
    mask[:, 0] = True
    mask[: len(tree), : len(tree)] = tree.ancestors().astype(bool)
    return tokens, mask
