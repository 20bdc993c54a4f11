"""The draft trees of SGLang's requests.

Every request has an index of its own text and texts. Where that has no confident copy, datastores
and corpora are searched, then the pool of earlier answers. Drafts depend on tokens alone, so all
ranks of a tensor-parallel server make the same.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graft.draft.copies.calibration import STORE_PRIOR, Calibration
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.copies.pooled import CopiesAndPool, pool_lookups
from graft.draft.copies.texts import learn, matched_spans
from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.budget import up_to_limit
from graft.integrations.sglang_corpora import Corpora
from graft.integrations.sglang_fields import NO_TEXTS, Texts
from graft.match.pool import PoolIndex, Pools
from graft.match.suffix_array import Store
from graft.match.suffix_automaton import SuffixAutomaton
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree

FILLER = 0  # token of padding nodes: children of the root, verified like any draft token


@dataclass(frozen=True, slots=True)
class Running:
    """A request of SGLang; `output` ends with the root. `texts` are read when it is new."""

    name: str
    prompt: Sequence[int]
    output: Sequence[int]
    texts: Texts = NO_TEXTS
    salt: str = ""


class Trees:
    """Draft trees of exactly `nodes` nodes, the root included."""

    def __init__(
        self, nodes: int, pools: Pools | None = None, corpora: Corpora | None = None
    ) -> None:
        self._nodes, self._pools, self._corpora = nodes, pools, corpora
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
            PoolIndex.warm_up()
        self._contexts: dict[str, DraftContext] = {}
        self._numbers = itertools.count()
        SuffixAutomaton.warm_up()
        Calibration.warm_up()

    def __contains__(self, name: object) -> bool:
        """Whether this request is indexed already."""
        return name in self._contexts

    def draft(self, requests: Sequence[Running]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [B * N] and the ancestor mask [B * N * N], flattened as SGLang takes them."""
        contexts = [self._context(request) for request in requests]
        free = Budget(self._nodes - 1, np.ones(1 + len(requests) * self._nodes))
        padded = [_padded(tree, self._nodes) for tree in self._drafter.propose(contexts, free)]
        tokens = np.concatenate([tokens for tokens, _ in padded])
        return tokens, np.concatenate([mask.ravel() for _, mask in padded])

    def keep(self, names: Iterable[str]) -> None:
        """Drop all other requests; one that returns is indexed again."""
        kept = set(names)
        for name in [name for name in self._contexts if name not in kept]:
            self.drop(name)

    def drop(self, name: str) -> None:
        """Forget a request and its texts; the pool keeps its answer."""
        context = self._contexts.pop(name, None)
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
            new = list(request.output[len(context.tokens) :])
            context.tokens += new
            self._drafter.observe([TargetStep(context.sequence, new)])
            return context
        prompt = list(request.prompt)
        context = DraftContext(
            next(self._numbers),
            prompt,
            [(0, len(prompt))],
            documents=[list(document) for document in request.texts.documents],
            prediction=list(request.texts.prediction),
            tokens=list(request.output),
            salt=request.salt,
        )
        self._contexts[request.name] = context
        if self._corpora:
            self._stores[context.sequence] = self._corpora.store(request.texts.corpora)
        self._drafter.start(context)
        return context


def _padded(tree: DraftTree, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [N] and ancestors [N, N] of a tree padded to `nodes` nodes."""
    missing = nodes - len(tree)
    tokens = np.concatenate([tree.tokens, np.full(missing, FILLER)]).astype(np.int64)
    mask = np.eye(nodes, dtype=bool)
    mask[:, 0] = True
    mask[: len(tree), : len(tree)] = tree.ancestors().astype(bool)
    return tokens, mask
