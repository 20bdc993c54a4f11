"""Graft as a drafter inside vLLM: copies from prompt, answer and datastores.

vllm serve MODEL --speculative-config '{"method": "custom_class",
    "model": "graft.integrations.vllm.Proposer", "num_speculative_tokens": 16}'

vLLM verifies one chain per request and passes the rows of its batch without request ids. So a row
is matched to a request by its text, without the tokens just sampled. Rows may move, leave and come
back (preemption); a text without a row for REMEMBERED steps is dropped. vLLM rejects unknown keys
in its speculative config, so datastores and a pool of earlier answers are named in
--additional-config '{"graft": {"stores": ["FOLDER"], "pool": "memory", "pool_tokens": 4000000}}'.
`pool` may be a folder that keeps the answers. vLLM passes no API key or cache salt to a proposer,
so all requests share the pool: use it where they may.
"""

import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.draft.copies.calibration import STORE_PRIOR, Calibration
from graft.draft.copies.chain_lookup import ChainLookup
from graft.draft.copies.texts import POOL_CONTEXT
from graft.errors import InputError
from graft.integrations.row_price import RowPrice
from graft.match.matches import Matches
from graft.match.pool import DEFAULT_TOKENS, PoolIndex, PoolOptions, Pools
from graft.match.store_warm_up import warm_up
from graft.match.suffix_array import Store, StoreIndex, open_store

REMEMBERED = 64  # steps until a text without a row is dropped
CONFIDENT = 0.8  # with a first draft token this probable no datastore is searched
OPTIONS = ("stores", "pool", "pool_tokens")
EVERYONE = ""  # the key of all requests


@dataclass(slots=True)
class _StoreLookup:
    """Lookups of one request in a datastore or pool, with their own calibration."""

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
    """One request: its text, the last step with a row of it, and its draft."""

    copies: ChainLookup
    lookups: list[_StoreLookup]
    learned: int  # first tokens that the pool need not keep: at first the prompt
    seen: int = -1  # the last step
    drafted: int = 0
    from_store: list[int] | None = None

    def extend(self, new: np.ndarray, max_tokens: int) -> np.ndarray:
        """Add new tokens and draft; the probabilities of the draft tokens."""
        scores = self.copies.extend(new)[: max(max_tokens, 0)]
        self.from_store = None
        for lookup in self.lookups:
            lookup.extend(new)
            if max_tokens > 0 and (not len(scores) or scores[0] < CONFIDENT):
                tokens, found = lookup.chain(max_tokens)
                if found.sum() > scores.sum():
                    self.from_store, scores = tokens, found
        return scores

    def draft(self, count: int) -> list[int]:
        self.drafted = count
        if self.from_store is not None:
            return self.from_store[:count]
        return self.copies.tokens(count)


class Proposer:
    """The proposer for vLLM's `custom_class`. It loads no model."""

    def __init__(
        self,
        vllm_config: Any,  # noqa: ANN401
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._max_draft = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(vllm_config.model_config.max_model_len)
        self._stores, self._pools = _open_stores(vllm_config)
        self._texts: list[_Text] = []
        self._places: dict[int, _Text] = {}  # of the last step, by row
        self._costs = RowPrice()
        self._clock, self._returned = clock, 0.0
        self._step = 0
        ChainLookup.warm_up()

    def load_model(self, *_: Any) -> None:  # noqa: ANN401
        """Does nothing; vLLM calls it."""

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
        decoding = [row for row, sampled in enumerate(sampled_token_ids) if sampled]
        lengths = {row: int(num_tokens_no_spec[row]) for row in decoding}
        texts = [
            self._text_of(row, token_ids_cpu[row, : lengths[row]], len(sampled_token_ids[row]))
            for row in decoding
        ]
        if all(text.seen == self._step - 1 for text in texts) and len(decoding) == len(drafts):
            rows = sum(1 + text.drafted for text in texts)
            self._costs.observe(rows, sum(map(len, sampled_token_ids)), seconds)
        price = self._costs.price(len(decoding))
        for row, text in zip(decoding, texts, strict=True):
            scores = self._draft_scores(text, token_ids_cpu[row, : lengths[row]])
            drafts[row] = text.draft(int(np.count_nonzero(scores > price)))
        self._places = dict(zip(decoding, texts, strict=True))
        self._learn()
        self._texts = [text for text in self._texts if self._step - text.seen < REMEMBERED]
        self._returned = self._clock()
        return drafts

    def _text_of(self, row: int, tokens: np.ndarray, sampled: int) -> _Text:
        """The text that this row continues, or a new one."""
        before = tokens[: len(tokens) - sampled]
        for text in itertools.chain([self._places.get(row)], self._texts):
            if (
                text is not None
                and len(text.copies) == len(before)
                and text.seen < self._step
                and text.copies.is_prefix_of(before)
            ):
                return text
        lookups = [_StoreLookup(each.index(), Calibration(STORE_PRIOR)) for each in self._stores]
        if self._pools:
            pool = self._pools.of(EVERYONE)
            lookups.append(_StoreLookup(pool.index(), Calibration()))
        text = _Text(ChainLookup(self._max_draft), lookups, learned=len(before))
        text.copies.reserve(len(tokens) + 256)
        self._texts.append(text)
        return text

    def _learn(self) -> None:
        """Add the answers of texts that have no row any more to the pool; of one that comes back
        later what is new."""
        if self._pools is None:
            return
        for text in self._texts:
            tokens = text.copies.text
            if text.seen == self._step - 1 and len(tokens) > text.learned:
                self._pools.add(EVERYONE, tokens[max(0, text.learned - POOL_CONTEXT) :])
                text.learned = len(tokens)

    def _draft_scores(self, text: _Text, tokens: np.ndarray) -> np.ndarray:
        new = tokens[len(text.copies) :]
        text.seen = self._step
        # vLLM reserves the last position for the token that it samples after the draft.
        return text.extend(new, min(self._max_draft, self._max_length - len(tokens) - 1))


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
    from transformers import AutoTokenizer

    from graft.models.checkpoints.tokenizer import tokenizer_fingerprint

    tokenizer = AutoTokenizer.from_pretrained(vllm_config.model_config.tokenizer)
    return tokenizer_fingerprint(tokenizer)


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


class RefuseDocuments:
    """For `vllm serve --middleware graft.integrations.vllm.RefuseDocuments`.

    vLLM accepts `vllm_xargs: {"documents": ...}` but passes it to no proposer. This middleware
    answers such requests with status 400.
    """

    MESSAGE = (
        "vllm_xargs.documents is not supported: vLLM passes no request fields to drafters. Put the "
        "documents into the prompt, or configure a datastore"
    )

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[dict]], send: Callable
    ) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        if _names_documents(b"".join(message.get("body", b"") for message in messages)):
            return await _bad_request(send, self.MESSAGE)

        async def replay() -> dict:
            return messages.pop(0) if messages else await receive()

        return await self._app(scope, replay, send)


def _names_documents(body: bytes) -> bool:
    if b"vllm_xargs" not in body:
        return False
    try:
        content = json.loads(body)
    except ValueError:
        return False  # vLLM reports the error
    extra = content.get("vllm_xargs") if isinstance(content, dict) else None
    return isinstance(extra, dict) and "documents" in extra


async def _bad_request(send: Callable, message: str) -> None:
    error = {"message": message, "type": "BadRequestError", "param": "vllm_xargs", "code": 400}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})
