"""Graft as a drafter inside vLLM: copies from prompt, answer, documents and datastores.

vllm serve MODEL --speculative-config '{"method": "custom_class",
    "model": "graft.integrations.vllm.Proposer", "num_speculative_tokens": 16}'

vLLM verifies one chain per request and passes the rows of its batch without request ids. So the
proposer wraps one method of the model runner, `propose_draft_token_ids`, and reads there which
request each row belongs to, and its documents, prediction and tenant (`vllm_fields.py`). They are
indexed when the request arrives and dropped when it ends.

vLLM rejects unknown keys in its speculative config, so datastores and a pool of earlier answers are
named in --additional-config '{"graft": {"stores": ["FOLDER"], "pool": "memory"}}'; also
"pool_tokens": 4000000. `pool` may be a folder that keeps the answers. Each tenant has a pool of its
own; requests without a tenant share one.
"""

import logging
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.draft.copies.calibration import STORE_PRIOR, Calibration
from graft.draft.copies.chain_lookup import ChainLookup
from graft.draft.copies.texts import POOL_CONTEXT
from graft.errors import InputError
from graft.integrations.draft_counters import DraftCounters
from graft.integrations.row_price import RowPrice
from graft.integrations.versions import VLLM_HOST
from graft.integrations.vllm_fields import Reader, tokenizer_of
from graft.match.matches import Matches
from graft.match.pool import DEFAULT_TOKENS, PoolIndex, PoolOptions, Pools
from graft.match.store_warm_up import warm_up
from graft.match.suffix_array import Store, StoreIndex, open_store

CONFIDENT = 0.8  # with a first draft token this probable no datastore is searched
OPTIONS = ("stores", "pool", "pool_tokens")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _StoreLookup:
    """Lookups of one request in a datastore or pool, with their own calibration."""

    source: str
    index: StoreIndex | PoolIndex
    calibration: Calibration
    matches: Matches | None = None

    def extend(self, new: np.ndarray) -> None:
        if self.matches is not None:
            self.calibration.observe(self.matches, new.tolist())
        self.matches = None
        self.index.extend(new)

    def chain(self, max_tokens: int) -> tuple[list[int], np.ndarray]:
        self.matches = self.index.lookup(4 * max_tokens, self.calibration.rates)
        return _likeliest(self.matches, max_tokens)


@dataclass(slots=True)
class _Text:
    """One request: what it drafts from, the last step with a row of it, and its draft."""

    request: Any  # vLLM's state of it
    copies: ChainLookup
    places: list[int]  # where each text of `copies` ends, up to the prompt
    sources: list[str]  # of these texts, and of the answer
    lookups: list[_StoreLookup]
    tenant: str | None  # None has no pool
    seen: int = -1  # the last step
    drafted: int = 0
    source: str = ""  # of the draft
    found: list[int] | None = None  # the chain of a lookup, if it is better than the copies

    def extend(self, new: np.ndarray, max_tokens: int) -> np.ndarray:
        """Add new tokens and draft; the probabilities of the draft tokens."""
        scores = self.copies.extend(new)[: max(max_tokens, 0)]
        self.found = None
        for lookup in self.lookups:
            lookup.extend(new)
            if max_tokens > 0 and (not len(scores) or scores[0] < CONFIDENT):
                tokens, found = lookup.chain(max_tokens)
                if found.sum() > scores.sum():
                    self.found, self.source, scores = tokens, lookup.source, found
        return scores

    def draft(self, count: int) -> list[int]:
        self.drafted = count
        if self.found is not None:
            return self.found[:count]
        if count:
            self.source = self.sources[bisect_right(self.places, self.copies.place())]
        return self.copies.tokens(count)


class Proposer:
    """The proposer for vLLM's `custom_class`. It loads no model."""

    def __init__(
        self,
        vllm_config: Any,  # noqa: ANN401
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        _follow_runners()
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        self._max_draft = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(model.max_model_len)
        vocabulary = int(model.get_vocab_size())
        self._reader = Reader(vocabulary, lambda: tokenizer_of(vllm_config))
        self._stores, self._pools = _open_stores(vllm_config)
        first_rank = parallel.rank % parallel.tensor_parallel_size == 0  # all make the same drafts
        self._counters = DraftCounters() if first_rank else None
        self._texts: dict[str, _Text] = {}
        self._names: Sequence[str] = ()
        self._costs = RowPrice()
        self._clock, self._returned = clock, 0.0
        self._step = 0
        ChainLookup.warm_up()

    def load_model(self, *_: Any) -> None:  # noqa: ANN401
        """Load the tokenizer, for documents that are texts; vLLM calls it before any request."""
        self._reader.load()

    def follow(self, names: Sequence[str], requests: Mapping[str, Any]) -> None:
        """Start with new requests and drop those that ended; the next draft has these rows."""
        for name in [*self._texts]:
            if requests.get(name) is not self._texts[name].request:
                self._finish(self._texts.pop(name))
        for name in names:
            if name not in self._texts:
                self._texts[name] = self._start(name, requests[name])
        self._names = names

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: object = None,  # noqa: ARG002
    ) -> list[list[int]]:
        """A chain for every decoding row, limited by the measured step cost; none in prefill."""
        seconds = self._clock() - self._returned
        self._step += 1
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        rows = {
            row: token_ids_cpu[row, : int(num_tokens_no_spec[row])]
            for row, sampled in enumerate(sampled_token_ids)
            if sampled
        }
        texts = [self._text_of(self._names[row], tokens) for row, tokens in rows.items()]
        if all(text.seen == self._step - 1 for text in texts) and len(rows) == len(drafts):
            verified = sum(1 + text.drafted for text in texts)
            self._costs.observe(verified, sum(map(len, sampled_token_ids)), seconds)
        price = self._costs.price(len(rows))
        drafted, accepted = Counter[str](), Counter[str]()
        for (row, tokens), text in zip(rows.items(), texts, strict=True):
            if text.drafted:
                accepted[text.source] += min(len(sampled_token_ids[row]) - 1, text.drafted)
            scores = self._draft_scores(text, tokens)
            drafts[row] = text.draft(int(np.count_nonzero(scores > price)))
            if text.drafted:
                drafted[text.source] += text.drafted
        if self._counters:
            self._counters.add(drafted, accepted)
        self._returned = self._clock()
        return drafts

    def _start(self, name: str, request: Any) -> _Text:  # noqa: ANN401
        """A new request; with a field that is no good it drafts from its own text alone."""
        given, tenant = self._reader.read(name, request)
        lookups = [
            _StoreLookup("store", each.index(), Calibration(STORE_PRIOR)) for each in self._stores
        ]
        if self._pools and tenant is not None:
            lookups.append(_StoreLookup("pool", self._pools.of(tenant).index(), Calibration()))
        copies = ChainLookup(self._max_draft)
        copies.reserve(request.num_prompt_tokens + sum(len(each) + 1 for _, each in given) + 256)
        places = [copies.add(tokens) for _, tokens in given]
        prompt_end = (places[-1] if places else 0) + request.num_prompt_tokens
        sources = [*(source for source, _ in given), "prompt", "output"]
        return _Text(request, copies, [*places, prompt_end], sources, lookups, tenant)

    def _text_of(self, name: str, tokens: np.ndarray) -> _Text:
        """The text of a request; another one if its prompt was replaced."""
        text = self._texts[name]
        if not text.copies.is_prefix_of(tokens):
            text = self._texts[name] = self._start(name, text.request)
        return text

    def _finish(self, text: _Text) -> None:
        """Add the answer of a request that ended to its tenant's pool."""
        tokens, prompt = text.copies.text, text.request.num_prompt_tokens
        if self._pools and text.tenant is not None and len(tokens) > prompt:
            self._pools.add(text.tenant, tokens[max(0, prompt - POOL_CONTEXT) :])

    def _draft_scores(self, text: _Text, tokens: np.ndarray) -> np.ndarray:
        new = tokens[len(text.copies) :]
        text.seen = self._step
        # vLLM reserves the last position for the token that it samples after the draft.
        return text.extend(new, min(self._max_draft, self._max_length - len(tokens) - 1))


def _follow_runners() -> None:
    """Let vLLM's model runners tell our proposer which request each row belongs to."""
    import vllm
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # of GPUs and, derived, of CPUs

    VLLM_HOST.check(vllm.__version__)
    propose = GPUModelRunner.propose_draft_token_ids
    if getattr(propose, "follows_requests", False):
        return

    def propose_draft_token_ids(runner: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if isinstance(runner.drafter, Proposer):
            runner.drafter.follow(runner.input_batch.req_ids, runner.requests)
        return propose(runner, *args, **kwargs)

    propose_draft_token_ids.follows_requests = True  # type: ignore[attr-defined]
    GPUModelRunner.propose_draft_token_ids = propose_draft_token_ids


def _open_stores(vllm_config: Any) -> tuple[list[Store], Pools | None]:  # noqa: ANN401
    """The configured datastores and pool; InputError for a store of another tokenizer."""
    options = (getattr(vllm_config, "additional_config", None) or {}).get("graft", {})
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise InputError(f"unknown graft option {unknown[0]!r}; options: {', '.join(OPTIONS)}")
    folders = options.get("stores", [])
    if isinstance(folders, str):
        folders = [folders]
    pool, size = options.get("pool", "off"), int(options.get("pool_tokens", DEFAULT_TOKENS))
    folder = None if pool in ("off", "memory") else pool
    fingerprint = _fingerprint(vllm_config) if folders or folder else ""
    stores = [open_store(folder, fingerprint) for folder in folders]
    for store in stores:
        warm_up(store.border)
    if pool == "off":
        return stores, None
    PoolIndex.warm_up()
    return stores, Pools(PoolOptions(folder, max_tokens=size), fingerprint)


def _fingerprint(vllm_config: Any) -> str:  # noqa: ANN401
    from graft.models.checkpoints.tokenizer import tokenizer_fingerprint

    return tokenizer_fingerprint(tokenizer_of(vllm_config))


def _likeliest(matches: Matches, max_tokens: int) -> tuple[list[int], np.ndarray]:
    """The path of the best children in a trie, and its probabilities."""
    parents = matches.parents.tolist()
    path: list[int] = []
    node = -1
    for at, parent in enumerate(parents):  # best first, parents before their children
        if parent == node and len(path) < max_tokens:
            path.append(at)
            node = at
    return matches.tokens[path].tolist(), matches.scores[path].astype(np.float64)
