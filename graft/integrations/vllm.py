"""Graft as a drafter inside vLLM: copies from prompt and answer, and from the operator's stores.

vllm serve MODEL --speculative-config '{"method": "custom_class",
    "model": "graft.integrations.vllm.Proposer", "num_speculative_tokens": 16}'

vLLM checks one chain a request and hands a proposer the rows of its batch, without request ids.
So a request is known by its text: a row continues the text that it is, token for token, but for
what was just sampled. Rows may then move, leave and come back (preemption); a text that is not
seen for a while is forgotten. vLLM refuses unknown keys in its speculative config, so datastores
are named in --additional-config '{"graft": {"stores": ["FOLDER"]}}'.
"""

import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.draft.copies.calibration import STORE_PRIOR, Calibration
from graft.draft.copies.chain_lookup import ChainLookup
from graft.errors import InputError
from graft.integrations.row_price import RowPrice
from graft.match.matches import Matches
from graft.match.suffix_array import Store, StoreIndex, open_store

REMEMBERED = 64  # steps after which a text that no row continues is forgotten
SURE = 0.8  # with an own first guess this likely no store is asked
OPTIONS = ("stores",)


@dataclass(slots=True)
class _Shelf:
    """A store as one request sees it: its own end of the text and its own trust."""

    index: StoreIndex
    trust: Calibration = field(default_factory=lambda: Calibration(STORE_PRIOR))
    matches: Matches | None = None

    def extend(self, came: np.ndarray) -> None:
        if self.matches is not None:
            self.trust.observe(self.matches, came.tolist())
        self.matches = None
        self.index.extend(came)

    def chain(self, longest: int) -> tuple[list[int], np.ndarray]:
        self.matches = self.index.lookup(4 * longest, self.trust.confidence())
        return _likeliest(self.matches, longest)


@dataclass(slots=True)
class _Text:
    """One request: its text, where it was seen last, and what was drafted for it."""

    copies: ChainLookup
    shelves: list[_Shelf]
    seen: int = -1  # no step yet
    drafted: int = 0
    from_store: list[int] | None = None

    def extend(self, came: np.ndarray, longest: int) -> np.ndarray:
        """Add what came, and guess; the probabilities of the guesses."""
        scores = self.copies.extend(came)[: max(longest, 0)]
        self.from_store = None
        for shelf in self.shelves:
            shelf.extend(came)
            if longest > 0 and (not len(scores) or scores[0] < SURE):
                tokens, found = shelf.chain(longest)
                if found.sum() > scores.sum():
                    self.from_store, scores = tokens, found
        return scores

    def draft(self, count: int) -> list[int]:
        self.drafted = count
        if self.from_store is not None:
            return self.from_store[:count]
        return self.copies.tokens(count)


class Proposer:
    """What vLLM's `custom_class` makes and asks after every step. Needs no model of its own."""

    def __init__(
        self,
        vllm_config: Any,  # noqa: ANN401
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._longest = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(vllm_config.model_config.max_model_len)
        self._stores = _open_stores(vllm_config)
        self._texts: list[_Text] = []
        self._places: dict[int, _Text] = {}  # those of the last step, by row
        self._costs = RowPrice()
        self._clock, self._left = clock, 0.0
        self._round = 0
        ChainLookup.warm_up()

    def load_model(self, *_: Any) -> None:  # noqa: ANN401
        """vLLM calls it; nothing to load."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: object = None,  # noqa: ARG002
    ) -> list[list[int]]:
        """A chain for every row, as long as pays; none for those whose prompt is being read."""
        seconds = self._clock() - self._left
        self._round += 1
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        writing = [row for row, sampled in enumerate(sampled_token_ids) if sampled]
        lengths = {row: int(num_tokens_no_spec[row]) for row in writing}
        texts = [
            self._text_of(row, token_ids_cpu[row, : lengths[row]], len(sampled_token_ids[row]))
            for row in writing
        ]
        if all(text.seen == self._round - 1 for text in texts) and len(writing) == len(drafts):
            rows = sum(1 + text.drafted for text in texts)
            self._costs.observe(rows, sum(map(len, sampled_token_ids)), seconds)
        price = self._costs.price(len(writing))
        for row, text in zip(writing, texts, strict=True):
            scores = self._guess(text, token_ids_cpu[row, : lengths[row]])
            drafts[row] = text.draft(int(np.count_nonzero(scores > price)))
        self._places = dict(zip(writing, texts, strict=True))
        self._texts = [text for text in self._texts if self._round - text.seen < REMEMBERED]
        self._left = self._clock()
        return drafts

    def _text_of(self, row: int, tokens: np.ndarray, sampled: int) -> _Text:
        """The text that this row continues; a new one where there is none."""
        before = tokens[: len(tokens) - sampled]
        for text in itertools.chain([self._places.get(row)], self._texts):
            if (
                text is not None
                and len(text.copies) == len(before)
                and text.seen < self._round
                and text.copies.is_prefix_of(before)
            ):
                return text
        text = _Text(ChainLookup(self._longest), [_Shelf(store.index()) for store in self._stores])
        text.copies.reserve(len(tokens) + 256)
        self._texts.append(text)
        return text

    def _guess(self, text: _Text, tokens: np.ndarray) -> np.ndarray:
        came = tokens[len(text.copies) :]
        text.seen = self._round
        # vLLM keeps the last place for the token that it samples behind the draft.
        return text.extend(came, min(self._longest, self._max_length - len(tokens) - 1))


def _open_stores(vllm_config: Any) -> list[Store]:  # noqa: ANN401
    """The datastores that the operator named, if they were made with the model's tokenizer."""
    options = (getattr(vllm_config, "additional_config", None) or {}).get("graft", {})
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise InputError(f"unknown graft option {unknown[0]!r}; there is: {', '.join(OPTIONS)}")
    folders = options.get("stores", [])
    if isinstance(folders, str):
        folders = [folders]
    if not folders:
        return []
    from transformers import AutoTokenizer

    from graft.match.store_warm_up import warm_up
    from graft.models.checkpoints.tokenizer import tokenizer_fingerprint

    tokenizer = AutoTokenizer.from_pretrained(vllm_config.model_config.tokenizer)
    stores = [open_store(folder, tokenizer_fingerprint(tokenizer)) for folder in folders]
    for store in stores:
        warm_up(store.border)
    return stores


def _likeliest(matches: Matches, longest: int) -> tuple[list[int], np.ndarray]:
    """The path of a trie that takes the best child at every node, and its probabilities."""
    parents = matches.parents.tolist()
    path, node = [], -1
    for at, parent in enumerate(parents):  # best first, parents before their children
        if parent == node and len(path) < longest:
            path.append(at)
            node = at
    return matches.tokens[path].tolist(), matches.scores[path].astype(np.float64)


class RefuseDocuments:
    """For `vllm serve --middleware graft.integrations.vllm.RefuseDocuments`.

    vLLM takes `vllm_xargs: {"documents": ...}` and shows it to no proposer. With this a request
    that hopes for it is answered 400 instead of being served as if it had not asked.
    """

    MESSAGE = (
        "vllm_xargs.documents is not supported: vLLM hands drafters no request fields. Put the "
        "documents into the prompt, or let the operator load a datastore"
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
        return False  # vLLM says what is wrong with it
    extra = content.get("vllm_xargs") if isinstance(content, dict) else None
    return isinstance(extra, dict) and "documents" in extra


async def _bad_request(send: Callable, message: str) -> None:
    error = {"message": message, "type": "BadRequestError", "param": "vllm_xargs", "code": 400}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})
