"""Presets of Graft with a verifier of their own, and prompts that retrieval shortens.

PRESET@VERIFIER or PRESET@VERIFIER:ETA loads the preset with that verifier, as in `sd@rejection` or
`rapid@rapid:20`; PRESET@RATE dials the acceptance rate (`dial.py`), PRESET-unrelated retrieves from
another document (`unrelated.py`). `rag` decodes plainly from a prompt that retrieval has shortened
(RAPID's row "RAG", the alternative to a long context), `rag+copy` drafts from it too.

Behind a question mark come numbers of the request, so that one load measures them all:
`rapid?draft_tokens=4&retrieved=2048`, `casd?casd.length=4`.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.decode.dial import AnswerKey, answer_key, dialled_drafter, rate_of
from benchmarks.decode.unrelated import SUFFIX, related, unrelated_drafter
from benchmarks.likelihood import log_likelihood
from benchmarks.settings import argument
from graft.assemble.presets import VERIFIERS
from graft.bench.decoding import INEXACT
from graft.bench.graft_engine import GraftEngine
from graft.bench.variants import GRAFT, Variant, preset
from graft.decode.engine import Engine
from graft.draft.options import USED_BY
from graft.draft.short_context.retrieved import Retrieval
from graft.errors import InputError

if TYPE_CHECKING:
    from benchmarks.decode.encode import Workload

RAG = "rag"
WALK = "walk"
OPTIONS = ("draft_tokens", *USED_BY, "shift")


def graft_variant(name: str) -> Variant:
    """A variant by its name; those with the same verifier share an engine."""
    name, _, numbers = name.partition("?")
    if numbers:
        options = request_options(numbers)
        return replace(graft_variant(name), name=f"{name}?{numbers}", options=options)
    method, _, rule = name.partition("@")
    if rate_of(name) is not None:
        if shortens(method):
            raise InputError(f"{name!r}: drafts from a shortened prompt cannot be dialled")
        return replace(preset(name), drafts=True)
    verifier, _, eta = (rule or WALK).partition(":")
    if verifier not in VERIFIERS:
        known = ", ".join(VERIFIERS)
        raise InputError(
            f"unknown verifier {verifier!r} in {name!r}; choose from {known}, or give a rate"
        )
    if eta and not eta.replace(".", "", 1).isdigit():
        raise InputError(f"{name!r}: behind the colon comes eta, such as 20")
    related(method)
    found = replace(preset(method, verifier), name=name, drafts=method not in ("plain", RAG))
    if shortens(method):
        found = replace(found, exactness=INEXACT)
    return found if verifier == WALK else replace(found, engine=f"{GRAFT}@{rule}")


def request_options(numbers: str) -> dict[str, Any]:
    """The options of a request from `draft_tokens=4&casd.length=16`."""
    found: dict[str, Any] = {}
    for part in numbers.split("&"):
        key, _, given = part.partition("=")
        name, _, inner = key.partition(".")
        try:
            value = json.loads(given)
        except ValueError:
            value = given  # such as a named budget
        if name not in OPTIONS:
            raise InputError(f"{key!r} is no number of a request; known are {', '.join(OPTIONS)}")
        if inner:
            found.setdefault(name, {})[inner] = value
        else:
            found[name] = value
    return {name: argument(name, value) for name, value in found.items()}


def shortens(method: str) -> bool:
    """Whether retrieval shortens the prompts."""
    return method.partition("+")[0] == RAG


def preset_of(method: str) -> str:
    """The draft preset: `copy` of `rag+copy`, `plain` of `rag`, `sd` of `sd@0.8`, `rapid` of
    `rapid-unrelated`."""
    method = related(method.partition("@")[0])
    return method.partition("+")[2] or "plain" if shortens(method) else method


class SuiteEngine(GraftEngine):
    """Graft's engine that also takes `rag` methods; retrieval counts as prefill.

    `retrieval` shortens their prompts. A `gold` field of a request asks for likelihoods. With
    `prefill_first` and a prefix cache the prompts are prefilled before they are timed, so that
    decoding alone is measured. `workload` has the documents of other prompts, for PRESET-unrelated.
    """

    def __init__(
        self,
        engine: Engine,
        settings: dict[str, Any] | None = None,
        *,
        retrieval: Retrieval | None = None,
        prefill_first: bool = False,
        workload: "Workload | None" = None,
    ) -> None:
        super().__init__(engine)
        self._workload = workload
        self.about["settings"] |= settings or {}
        self._prefill_first = prefill_first
        # Not the drafters' own, which keeps short prompts: retrieval is timed here
        self._shorten = (retrieval or Retrieval()).with_tokenizer(engine.loaded.tokenizer)
        self._answers: dict[AnswerKey, list[int]] = {}  # of plain decoding
        self._max_tokens: dict[AnswerKey, int] = {}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """As GraftEngine; with `prefilled_tokens` where prompts are shortened."""
        method = request["method"]
        if not shortens(method):
            return self._answer(request)
        options = dict(request.get("options", {}))
        budget = options.pop("retrieved", None)
        start = time.perf_counter()
        prompts = [self._short(prompt, budget) for prompt in request["prompts"]]
        seconds = time.perf_counter() - start
        short = {"prompts": prompts, "method": preset_of(method), "options": options}
        answer = self._answer(request | short)
        for name in ("prefill_seconds", "total_seconds"):
            if answer.get(name) is not None:
                answer[name] += seconds
        return {**answer, "prefilled_tokens": sum(map(len, prompts))}

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "gold" in request:
            pairs = zip(request["prompts"], request["gold"], strict=True)
            found = [sum(log_likelihood(self.engine, *pair)) for pair in pairs]
            return {"log_likelihoods": found}
        if rate_of(request["method"]) is not None:
            self._prepare_dial(request)
        if request["method"].endswith(SUFFIX):
            self._prepare_unrelated(request["method"])
        if self._prefill_first:
            super().ask(self._prefilling(request))
        answer = super().ask(request)
        if request["method"] == "plain":
            self._keep(request, answer)
        return answer

    def _prepare_dial(self, request: dict[str, Any]) -> None:
        """Make the dialled drafter and plain decoding's answers, before anything is timed."""
        drafters, name = self.engine.drafters, request["method"]
        if name not in drafters:
            made = self.engine.exclusive(lambda: dialled_drafter(name, drafters, self._answers))
            drafters[name] = made
        if any(self._max_tokens.get(key, 0) < request["max_tokens"] for key in _keys(request)):
            plain = {**request, "method": "plain", "options": {}}
            self._keep(plain, super().ask(plain))

    def _prepare_unrelated(self, name: str) -> None:
        drafters, workload = self.engine.drafters, self._workload
        if name not in drafters:
            if workload is None:
                raise InputError(f"{name!r} needs the documents of a suite: benchmarks decode")
            made = self.engine.exclusive(lambda: unrelated_drafter(name, drafters, workload))
            drafters[name] = made

    def _keep(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        for key, tokens in zip(_keys(request), answer["token_ids"], strict=True):
            self._answers[key], self._max_tokens[key] = tokens, request["max_tokens"]

    def _prefilling(self, request: dict[str, Any]) -> dict[str, Any]:
        """A request that prefills the prompts: a draft model does so chunk by chunk, over steps."""
        chunks = sum(map(len, request["prompts"])) // self.engine.model.chunk
        steps = 1 if request["method"] == "plain" else 3 + chunks
        return {**request, "max_tokens": min(steps, request["max_tokens"])}

    def _short(self, prompt: Sequence[int], budget: int | str | None = None) -> list[int]:
        """The shortened prompt; a short prompt stays as it is."""
        if self._shorten is None:
            raise InputError("rag needs a model with a fast tokenizer")
        found = self._shorten(prompt, [(0, len(prompt))], budget)
        return list(prompt if found is None else found)


def _keys(request: dict[str, Any]) -> list[AnswerKey]:
    pairs = zip(request["prompts"], request["seeds"], strict=True)
    return [answer_key(prompt, seed, request["temperature"]) for prompt, seed in pairs]
