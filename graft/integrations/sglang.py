"""Graft as a drafter inside SGLang: trees copied from each request's own prompt and answer.

sglang serve --model-path MODEL --speculative-algorithm GRAFT --speculative-num-draft-tokens 16

SGLang finds `register` by its entry point `sglang.srt.plugins`. The worker is SGLang's own NGRAM
worker with another source of trees, so verification, KV moves and CUDA graphs are SGLang's. Its
own drafts come from the last tokens of all requests together; here every request has an index over
its whole text, and `custom_params: {"documents": [[token ids], ...]}` of a request is drafted from
for that request alone.
"""

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.draft.copies.calibration import Calibration
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.budget import as_many_as_fit
from graft.match.suffix_automaton import SuffixAutomaton
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree

NAME = "GRAFT"
FILLER = 0  # a token for nodes left over: children of the root, checked like any guess

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Running:
    """A request as SGLang has it: `output` ends with the last token known, the root."""

    name: str
    prompt: Sequence[int]
    output: Sequence[int]
    documents: Sequence[Sequence[int]] = ()


class Trees:
    """Trees of `nodes` nodes, the root among them, for requests known by name."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._budget = Budget(nodes - 1, np.ones(nodes))
        self._drafter = LookupDrafter(
            SuffixAutomaton, as_many_as_fit, nodes=nodes - 1, calibrated=True
        )
        self._contexts: dict[str, DraftContext] = {}
        self._numbers = itertools.count()
        SuffixAutomaton.warm_up()
        Calibration.warm_up()

    def draft(self, requests: Sequence[Running]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [B * N] and, row by row, who is whose ancestor [B * N * N], as SGLang wants it."""
        contexts = [self._follow(request) for request in requests]
        trees = self._drafter.propose(contexts, self._budget)
        filled = [_filled(tree, self._nodes) for tree in trees]
        tokens = np.concatenate([tokens for tokens, _ in filled])
        return tokens, np.concatenate([mask.ravel() for _, mask in filled])

    def keep(self, names: Iterable[str]) -> None:
        """Forget all other requests; one that comes back is indexed anew."""
        for name in self._contexts.keys() - set(names):
            self._drafter.finish(self._contexts.pop(name).sequence)

    def _follow(self, request: Running) -> DraftContext:
        context = self._contexts.get(request.name)
        if context is not None:
            came = list(request.output[len(context.tokens) :])
            context.tokens += came
            self._drafter.observe([TargetStep(context.sequence, came)])
            return context
        prompt = list(request.prompt)
        context = DraftContext(
            next(self._numbers),
            prompt,
            [(0, len(prompt))],
            documents=[list(document) for document in request.documents],
            tokens=list(request.output),
        )
        self._contexts[request.name] = context
        self._drafter.start(context)
        return context


def _filled(tree: DraftTree, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [N] and ancestors [N, N] of a tree brought to `nodes` nodes."""
    missing = nodes - len(tree)
    tokens = np.concatenate([tree.tokens, np.full(missing, FILLER)]).astype(np.int64)
    mask = np.eye(nodes, dtype=bool)
    mask[:, 0] = True
    mask[: len(tree), : len(tree)] = tree.ancestors().astype(bool)
    return tokens, mask


def documents_of(request: Any) -> list[list[int]]:  # noqa: ANN401
    """The token lists that a request names in its custom_params; what is none is said once."""
    custom = getattr(request.sampling_params, "custom_params", None)
    documents = custom.get("documents", []) if isinstance(custom, dict) else []
    if all(isinstance(each, list) and all(type(i) is int for i in each) for each in documents):
        return documents
    logger.warning(
        "request %s: custom_params.documents must be lists of token ids; not drafted from",
        request.rid,
    )
    return []


def register() -> None:
    """Tell SGLang of the algorithm; called by SGLang in each of its processes."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class GraftAlgorithm(CustomSpecAlgo):
        """Takes the ways of NGRAM through SGLang, but for its worker."""

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
        """Drafts from each request's own text instead of a pool of all requests' last tokens."""

        _trees: Trees | None = None

        def _prepare_draft_tokens(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:  # noqa: ANN401
            if self._trees is None:
                self._trees = Trees(self.draft_token_num)
            late = self._late_tokens(batch)
            return self._trees.draft(
                [
                    Running(
                        request.rid,
                        request.origin_input_ids_unpadded,
                        [*request.output_ids, *more],
                        documents_of(request),
                    )
                    for request, more in zip(batch.reqs, late, strict=True)
                ]
            )

        def _late_tokens(self, batch: Any) -> list[list[int]]:  # noqa: ANN401
            """With overlapped scheduling the last round's tokens are not in output_ids yet."""
            if not self.enable_overlap or batch.grammar_needs_sync():
                return [[] for _ in batch.reqs]
            tokens = batch.spec_info.accept_tokens.cpu().tolist()
            counts = batch.spec_info.accept_lens.cpu().tolist()
            width = self.draft_token_num
            return [tokens[i * width : i * width + count] for i, count in enumerate(counts)]

        def _update_ngram_corpus(self, batch: Any) -> None:  # noqa: ANN401
            """Called after every round: there is no pool to fill, only texts to forget."""
            if self._trees is not None:
                self._trees.keep(request.rid for request in batch.reqs)

        def clear_cache_pool(self) -> None:
            super().clear_cache_pool()
            self._trees = None

    return GraftWorker
