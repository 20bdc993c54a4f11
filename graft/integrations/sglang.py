"""Graft as a drafter inside SGLang: copies from each request's own prompt and answer.

sglang serve --model-path MODEL --speculative-algorithm GRAFT --speculative-num-draft-tokens 16
    --speculative-ngram-max-bfs-breadth 1

SGLang finds `register` by its entry point `sglang.srt.plugins`. The worker is SGLang's own NGRAM
worker with another source of drafts, so verification, KV and CUDA graphs are SGLang's. NGRAM drafts
from a pool of the last tokens of all requests; here every request has an index of its whole text,
and of the texts in its `custom_params` (`sglang_fields.py`). With the last option drafts are
chains, which the GPU can find (`sglang_chains.py`). Without it they are trees from the host: all
requests draft from SGLang's external corpora, or from those that they name, and from the datastores
in GRAFT_STORES. With GRAFT_POOL=memory, or a folder that keeps them, also from earlier answers to
requests with the same `extra_key` (cache salt).

NGRAM verifies a full tree in every step. Here a step has as many draft tokens as are expected to
pay, by acceptance probabilities and measured step times, often none (`sglang_steps.py`).
"""

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from graft.errors import InputError
from graft.integrations.draft_width import accepted_at
from graft.integrations.request_text import encoder
from graft.integrations.sglang_chains import Chains, chains_of, wants_only_chains
from graft.integrations.sglang_corpora import Corpora
from graft.integrations.sglang_fields import NO_TEXTS, Reader, Texts
from graft.integrations.sglang_frontend import NAME, add_hooks
from graft.integrations.sglang_steps import (
    FULL,
    LastStep,
    NewestTokens,
    Pace,
    Size,
    as_full_trees,
    bound_lengths,
    compile_kernels,
    full_mask,
    keep_chains_in_place,
    know_lengths,
    known_lengths,
    needs_host,
    plain_step,
    resolve_known_lengths,
    sizes_of,
)
from graft.integrations.sglang_trees import Running, Trees
from graft.integrations.versions import SGLANG
from graft.match.pool import PoolOptions, Pools
from graft.match.store_files import open_arrays

logger = logging.getLogger(__name__)


def register() -> None:
    """Register the algorithm and the hooks; SGLang calls this in each of its processes."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    algorithm = algorithm_class()

    @SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=algorithm)
    def make_worker(_: Any) -> type:  # noqa: ANN401
        import sglang

        SGLANG.check(sglang.__version__)
        return worker_class()

    add_hooks()


def algorithm_class() -> type:
    """An algorithm of SGLang's registry that answers like NGRAM, but has its own worker.

    SGLang's scheduler also calls methods that its class for plug-ins does not have.
    """
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    def like_ngram(name: str) -> Any:  # noqa: ANN401
        def answer(_: object, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            return getattr(SpeculativeAlgorithm.NGRAM, name)(*arguments, **options)

        return answer

    methods = [
        name
        for name, member in vars(SpeculativeAlgorithm).items()
        if inspect.isfunction(member) and not name.startswith("_") and name != "create_worker"
    ]
    answers = {name: like_ngram(name) for name in methods}
    make_relay = answers["create_future_map"]

    def create_future_map(self: object, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        return resolve_known_lengths(make_relay(self, *arguments, **options))

    answers["create_future_map"] = create_future_map
    return type("GraftAlgorithm", (CustomSpecAlgo,), answers)


def worker_class() -> type:
    """SGLang's NGRAM worker with Graft's trees."""
    from sglang.srt.speculative import ngram_worker

    ngram_worker.USE_FULL_MASK = False  # it fills them request by request

    class GraftWorker(WorkerDrafts, ngram_worker.NGRAMWorker):
        """Of NGRAMWorker everything but its corpora, its drafts and the size of its steps."""

        def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
            super().__init__(*arguments, **options)  # loads the corpus that the options name
            self.start_drafts()

        def init_cuda_graphs(self) -> None:
            """Make those of smaller steps, after SGLang's own."""
            super().init_cuda_graphs()
            self.start_steps()

        def forward_batch_generation(
            self,
            batch: Any,  # noqa: ANN401
            on_publish: Any = None,  # noqa: ANN401
            **options: Any,  # noqa: ANN401
        ) -> Any:  # noqa: ANN401
            """See NGRAMWorker."""
            run = super().forward_batch_generation
            return self.run_step(batch, on_publish, lambda: run(batch, on_publish, **options))

        def _prepare_for_speculative_decoding(self, batch: Any) -> None:  # noqa: ANN401
            decodes = batch.forward_mode.is_decode()
            if decodes and self.chains and not needs_host(batch):
                self.chains.verify_input(self, batch)
                return
            super()._prepare_for_speculative_decoding(batch)
            if decodes:
                nodes, verified = self.draft_token_num, batch.spec_info
                trees = verified.custom_mask.view(-1, nodes, nodes)
                total = int(batch.seq_lens_cpu.sum())
                verified.custom_mask = full_mask(trees, batch.seq_lens, total)

        def clear_cache_pool(self) -> None:
            """See NGRAMWorker; corpora stay, a pool in memory does not."""
            super().clear_cache_pool()
            self.reset_drafts()

    return GraftWorker


class WorkerDrafts:
    """What is not NGRAM's in the worker: drafts from each request's own text, and from corpora and
    datastores, in steps of several sizes. The attributes are NGRAMWorker's."""

    server_args: Any
    target_worker: Any
    model_runner: Any
    ngram_corpus: Any
    draft_token_num: int
    topk: int  # with 1 attention to draft tokens may be causal
    enable_overlap: bool
    req_to_token_pool: Any
    device: Any
    chains: Chains | None = None  # where the host need not know drafts
    _started = False
    _sizes: Mapping[int, Size] = MappingProxyType({})  # of steps with fewer draft tokens

    def start_drafts(self) -> None:
        """Open datastores and pool, and compile, before the first request."""
        self.trees.warm_up()
        self._started = True

    def start_steps(self) -> None:
        """Make what smaller steps need, once SGLang has made what full ones need."""
        if self.topk == 1:
            keep_chains_in_place()
        self._sizes = sizes_of(self, self.pace.widths[:-1])
        if self._sizes:
            compile_kernels(self, self.pace.widths)
            if wants_only_chains(self):
                self.chains = chains_of(self)
            found = "the device" if self.chains else "the host"
            logger.info("Draft tokens of a step: one of %s, found on %s", self.pace.widths, found)

    def reset_drafts(self) -> None:
        """Forget all requests."""
        self.trees.close()
        del self.trees

    @cached_property
    def _context_length(self) -> int:
        return self.model_runner.model_config.context_len

    @cached_property
    def pace(self) -> Pace:
        """Draft tokens of the next step."""
        return Pace(self.draft_token_num - 1)

    @cached_property
    def last_step(self) -> LastStep:
        """Tokens of the step before."""
        return LastStep()

    @cached_property
    def newest_tokens(self) -> NewestTokens:
        """Where `chains` do not know them."""
        return NewestTokens(self.req_to_token_pool.req_to_token.shape[0], self.device)

    @cached_property
    def corpora(self) -> Corpora:
        """What requests share."""
        return corpora_of(self.server_args, self.model_runner.model_config.vocab_size)

    @cached_property
    def trees(self) -> Trees:
        """Of the running requests."""
        pools, chains = pools_of(self.server_args), self.topk == 1
        return Trees(self.draft_token_num, pools, self.corpora, chains=chains)

    @cached_property
    def reader(self) -> Reader:
        """Of the requests' texts."""
        tokenizer = getattr(self.target_worker, "tokenizer", None)
        return Reader(encoder(tokenizer), self.model_runner.model_config.vocab_size)

    def add_external_corpus(self, corpus_id: str, token_chunks: list[list[int]]) -> int:
        """See NGRAMWorker; called in a thread."""
        if self.chains:
            raise InputError(
                "corpora are searched on the host, and this server finds drafts on the device; "
                "start it without --speculative-ngram-max-bfs-breadth 1"
            )
        if self._started and self.server_args.tp_size > 1:
            raise InputError(
                "corpora cannot be added to a tensor-parallel server, whose ranks would have "
                "them at different steps; name a file in --speculative-ngram-external-corpus-path"
            )
        limit = self.ngram_corpus.external_corpus_max_tokens
        return self.corpora.build(corpus_id, token_chunks, limit)

    def commit_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:  # noqa: ARG002
        """See NGRAMWorker."""
        self.corpora.commit(corpus_id)

    def remove_external_corpus(self, corpus_id: str) -> None:
        """See NGRAMWorker."""
        self.corpora.remove(corpus_id)

    def list_external_corpora(self) -> dict[str, int]:
        """See NGRAMWorker."""
        return self.corpora.counts()

    def run_step(self, batch: Any, on_publish: Any, run: Callable[[], Any]) -> Any:  # noqa: ANN401
        """A step of SGLang; `run` computes prompts, or verifies trees of draft_token_num nodes."""
        requests, lengths = batch.reqs, batch.seq_lens_cpu.tolist()
        if not batch.forward_mode.is_decode():
            result = run()
            if requests:
                self.pace.launched(None)
                know_lengths(requests, lengths)
                if self.chains:
                    self.chains.begin(batch, self._texts)
                self._follow(batch, result.next_token_ids[:, None], None, prompts=True)
            return result
        width, rests = self._draft_tokens(batch)
        self.pace.launched(width, rests)
        if not width:
            newest = (self.chains or self.newest_tokens).newest(batch)
            result = plain_step(self, batch, on_publish, self._sizes[0], newest)
            bound_lengths(requests, lengths, 0)
            self._follow(batch, result.next_token_ids[:, None], None)
            if rests is not None:
                self._update_ngram_corpus(batch)
            return result
        with self._sizes.get(width, FULL).used(self):
            result = run()
        if self.chains and not needs_host(batch):
            bound_lengths(requests, lengths, width)
        else:
            know_lengths(requests, [None] * len(requests))
        following = result.next_draft_input
        tokens = following.accept_tokens.view(len(requests), -1)
        self._follow(batch, tokens, following.accept_lens)
        as_full_trees(following, self.draft_token_num)
        return result

    def _follow(
        self,
        batch: Any,  # noqa: ANN401
        tokens: Any,  # noqa: ANN401
        counts: Any,  # noqa: ANN401
        *,
        prompts: bool = False,
    ) -> None:
        """The new tokens [B, N] of a step, counts [B] of each request or one of each."""
        self.last_step.note(batch, tokens, counts)
        if self.chains:
            self.chains.follow(batch, tokens, counts, prompts=prompts)
        else:
            self.newest_tokens.note(batch, tokens, counts)

    def _draft_tokens(self, batch: Any) -> tuple[int, int | None]:  # noqa: ANN401
        """How many draft tokens each request gets, 0 for a plain step; after a search for copies on
        the host, how many steps do without one.

        The host does not wait for a step whose lengths it knows; its one token is missing then.
        """
        if not self._sizes or needs_host(batch):
            return self.draft_token_num - 1, None
        longest = max(batch.seq_lens_cpu.tolist(), default=0)
        if longest + self.draft_token_num > self._context_length:
            return 0, 0  # FlashAttention's table of pages has no room for more than the context
        if self.chains:
            expected = accepted_at(self.chains.rates(batch))
            width, _ = self.pace.choose(len(batch.reqs), expected)
            return self._agreed((width, 0))
        known = known_lengths(batch.reqs) is not None
        if known and self.pace.rests():
            return 0, None
        running = self._running(batch, [[]] * len(batch.reqs) if known else None)
        expected = self.trees.expected(running, skipped=int(known))
        return self._agreed(self.pace.choose(len(running), expected))

    def _agreed(self, choice: tuple[int, int]) -> tuple[int, int]:
        """That of the first rank: step times differ."""
        if self.server_args.tp_size == 1:
            return choice
        from sglang.srt.distributed import get_tp_group

        return get_tp_group().broadcast_object(choice, src=0)

    def on_verify_complete_cpu(
        self,
        num_correct_drafts_per_req: list[int],
        batch_size: int = 0,  # noqa: ARG002
    ) -> None:
        """See BaseSpecWorker."""
        self.pace.processed([1 + count for count in num_correct_drafts_per_req])

    def _prepare_draft_tokens(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:  # noqa: ANN401
        return self.trees.draft(self._running(batch), self.draft_token_num)

    def _running(self, batch: Any, in_flight: list[list[int]] | None = None) -> list[Running]:  # noqa: ANN401
        """The requests of a batch with the tokens in flight, which the host waits for unless they
        are given."""
        if in_flight is None:
            in_flight = self.last_step.in_flight(batch, batch.seq_lens_cpu.tolist())
        return [
            Running(
                request.rid,
                request.origin_input_ids_unpadded,
                request.output_ids,
                NO_TEXTS if request.rid in self.trees else self._texts(request),
                getattr(request, "extra_key", None) or "",
                tokens,
            )
            for request, tokens in zip(batch.reqs, in_flight, strict=True)
        ]

    def _texts(self, request: Any) -> Texts:  # noqa: ANN401
        """Of a new request; what cannot be used is logged: only the front end can refuse it."""
        texts = NO_TEXTS
        try:
            texts = self.reader.read(getattr(request.sampling_params, "custom_params", None))
            self.corpora.check(texts.corpora or ())
        except InputError as error:
            logger.warning("request %s: %s", request.rid, error)
        return texts

    def _update_ngram_corpus(self, batch: Any) -> None:  # noqa: ANN401
        """Called while the device verifies: drops requests that left the batch instead of
        updating a pool."""
        self.trees.keep(request.rid for request in batch.reqs)
        self.trees.update_async()

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:  # noqa: ARG002
        """See BaseSpecWorker."""
        self.trees.drop(rid)

    def update_weights_from_disk(self, recv_req: Any) -> tuple[bool, str]:  # noqa: ANN401, ARG002
        """Does nothing: there is no draft model."""
        return True, "Succeeded to update model weights."

    def update_weights_from_ipc(self, recv_req: Any) -> tuple[bool, str]:  # noqa: ANN401, ARG002
        """Does nothing: there is no draft model."""
        return True, "Succeeded to update model weights."


def corpora_of(server_args: Any, vocabulary: int) -> Corpora:  # noqa: ANN401
    """No corpora yet, and the datastores in the folders that $GRAFT_STORES names."""
    folders = [each for each in os.environ.get("GRAFT_STORES", "").split(os.pathsep) if each]
    fingerprint = _fingerprint(server_args) if folders else ""
    opened = [open_arrays(Path(each).expanduser(), fingerprint) for each in folders]
    for manifest, _ in opened:
        vocabulary = manifest.vocabulary  # of the tokenizer: the same for all
    return Corpora(vocabulary, [shard for _, shards in opened for shard in shards])


def pools_of(server_args: Any) -> Pools | None:  # noqa: ANN401
    """The pool that $GRAFT_POOL names."""
    chosen = os.environ.get("GRAFT_POOL", "off")
    if chosen in ("off", "memory"):
        return None if chosen == "off" else Pools()
    if server_args.tp_size > 1:
        raise InputError("ranks cannot share a pool's folder; set GRAFT_POOL=memory with --tp")
    return Pools(PoolOptions(chosen), _fingerprint(server_args))


def _fingerprint(server_args: Any) -> str:  # noqa: ANN401
    from transformers import AutoTokenizer

    from graft.models.checkpoints.tokenizer import tokenizer_fingerprint

    name = server_args.tokenizer_path or server_args.model_path
    return tokenizer_fingerprint(AutoTokenizer.from_pretrained(name))
