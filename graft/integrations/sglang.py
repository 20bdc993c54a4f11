"""Graft as a drafter inside SGLang: trees copied from each request's own prompt and answer.

sglang serve --model-path MODEL --speculative-algorithm GRAFT --speculative-num-draft-tokens 16

SGLang finds `register` by its entry point `sglang.srt.plugins`. The worker is SGLang's own NGRAM
worker with another source of trees, so verification, KV moves and CUDA graphs are SGLang's. NGRAM
drafts from a pool of the last tokens of all requests; here every request has an index of its whole
text, and of its `custom_params: {"documents": [[token ids], ...]}`. With GRAFT_POOL=memory, or a
folder that keeps them, trees also have copies from earlier answers to requests with the same
`extra_key` (cache salt).
"""

import itertools
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.draft.copies.calibration import Calibration
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.copies.pooled import CopiesAndPool, pool_lookups
from graft.draft.copies.texts import learn
from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.budget import up_to_limit
from graft.match.pool import PoolIndex, PoolOptions, Pools
from graft.match.suffix_automaton import SuffixAutomaton
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree

NAME = "GRAFT"
FILLER = 0  # token of padding nodes: children of the root, verified like any draft token

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Running:
    """A request of SGLang; `output` ends with the root."""

    name: str
    prompt: Sequence[int]
    output: Sequence[int]
    documents: Sequence[Sequence[int]] = ()
    salt: str = ""


class Trees:
    """Draft trees of exactly `nodes` nodes, the root included."""

    def __init__(self, nodes: int, pools: Pools | None = None) -> None:
        self._nodes, self._pools = nodes, pools
        self._budget = Budget(nodes - 1, np.ones(nodes))
        self._drafter: LookupDrafter | CopiesAndPool = LookupDrafter(
            lambda _: SuffixAutomaton(), up_to_limit, nodes=nodes - 1, calibrated=True
        )
        if pools:
            self._drafter = CopiesAndPool(self._drafter, pool_lookups(pools, nodes - 1))
            PoolIndex.warm_up()
        self._contexts: dict[str, DraftContext] = {}
        self._numbers = itertools.count()
        SuffixAutomaton.warm_up()
        Calibration.warm_up()

    def draft(self, requests: Sequence[Running]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [B * N] and the ancestor mask [B * N * N], flattened as SGLang takes them."""
        contexts = [self._context(request) for request in requests]
        trees = self._drafter.propose(contexts, self._budget)
        padded = [_padded(tree, self._nodes) for tree in trees]
        tokens = np.concatenate([tokens for tokens, _ in padded])
        return tokens, np.concatenate([mask.ravel() for _, mask in padded])

    def keep(self, names: Iterable[str]) -> None:
        """Drop all other requests; one that returns is indexed again."""
        for name in self._contexts.keys() - set(names):
            context = self._contexts.pop(name)
            self._drafter.finish(context.sequence)
            if self._pools:
                learn(self._pools, context, context.tokens)

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
            documents=[list(document) for document in request.documents],
            tokens=list(request.output),
            salt=request.salt,
        )
        self._contexts[request.name] = context
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


def documents_of(request: Any) -> list[list[int]]:  # noqa: ANN401
    """The documents in a request's custom_params; invalid ones are logged and ignored."""
    custom = getattr(request.sampling_params, "custom_params", None)
    documents = custom.get("documents", []) if isinstance(custom, dict) else []
    if all(isinstance(each, list) and all(type(i) is int for i in each) for each in documents):
        return documents
    logger.warning(
        "request %s: custom_params.documents must be lists of token ids; ignored", request.rid
    )
    return []


def pools_of(server_args: Any) -> Pools | None:  # noqa: ANN401
    """The pool that $GRAFT_POOL names."""
    chosen = os.environ.get("GRAFT_POOL", "off")
    if chosen in ("off", "memory"):
        return None if chosen == "off" else Pools()
    from transformers import AutoTokenizer

    from graft.models.checkpoints.tokenizer import tokenizer_fingerprint

    name = server_args.tokenizer_path or server_args.model_path
    fingerprint = tokenizer_fingerprint(AutoTokenizer.from_pretrained(name))
    return Pools(PoolOptions(chosen), fingerprint)


def register() -> None:
    """Register the algorithm; SGLang calls this in each of its processes."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class GraftAlgorithm(CustomSpecAlgo):
        """NGRAM with another worker."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return SpeculativeAlgorithm.NGRAM.has_draft_kv()

        def handle_server_args(self, server_args: Any) -> None:  # noqa: ANN401
            SpeculativeAlgorithm.NGRAM.handle_server_args(server_args)

    @SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=GraftAlgorithm)
    def make_worker(_: Any) -> type:  # noqa: ANN401
        return worker_class()


def worker_class() -> type:
    """SGLang's NGRAM worker with Graft's trees."""
    from sglang.srt.speculative.ngram_worker import NGRAMWorker

    class GraftWorker(NGRAMWorker):
        """Drafts from each request's own text."""

        _trees: Trees | None = None

        def _prepare_draft_tokens(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:  # noqa: ANN401
            if self._trees is None:
                self._trees = Trees(self.draft_token_num, pools_of(self.server_args))
            new = self._tokens_in_flight(batch)
            return self._trees.draft(
                [
                    Running(
                        request.rid,
                        request.origin_input_ids_unpadded,
                        [*request.output_ids, *more],
                        documents_of(request),
                        getattr(request, "extra_key", None) or "",
                    )
                    for request, more in zip(batch.reqs, new, strict=True)
                ]
            )

        def _tokens_in_flight(self, batch: Any) -> list[list[int]]:  # noqa: ANN401
            """With overlap scheduling the last step's tokens are not in output_ids yet."""
            if not self.enable_overlap or batch.grammar_needs_sync():
                return [[] for _ in batch.reqs]
            tokens = batch.spec_info.accept_tokens.cpu().tolist()
            counts = batch.spec_info.accept_lens.cpu().tolist()
            width = self.draft_token_num
            return [tokens[i * width : i * width + count] for i, count in enumerate(counts)]

        def _update_ngram_corpus(self, batch: Any) -> None:  # noqa: ANN401
            """Called after every step: drops finished requests instead of updating a pool."""
            if self._trees is not None:
                self._trees.keep(request.rid for request in batch.reqs)

        def clear_cache_pool(self) -> None:
            super().clear_cache_pool()
            self._trees = None

    return GraftWorker
