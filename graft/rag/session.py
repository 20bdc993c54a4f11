"""Sessions: questions answered over a corpus with adaptive retrieval.

A policy decides when to search and with which query. Each prompt has the demonstrations, the
passages of the round, the question and the text so far; drafts come from all but the demonstrations
(IDR2).
"""

from dataclasses import replace
from pathlib import Path

from graft.decode.engine import Engine
from graft.decode.prepared_request import PreparedRequest, PreparedRows
from graft.decode.request import Request
from graft.decode.stats import clock
from graft.decode.text import Prompt
from graft.errors import InputError
from graft.rag.answer import Answer
from graft.rag.answering import AnswerStream
from graft.rag.corpus import Corpus
from graft.rag.document_cache import DocumentCache
from graft.rag.families import find_family
from graft.rag.parts import Part
from graft.rag.policies import make_policy
from graft.rag.policy import TUNED_FOR, Policy
from graft.rag.prompt import Prompter
from graft.rag.reuse import DISK_BYTES, Reuse, as_reuse
from graft.rag.sentences import Language, find_language
from graft.sampling import SamplingParams

PASSAGES = 3  # per round
MAX_ROUNDS = 16  # with retrieval


class Session:
    """Answers questions over a corpus with a model.

    `policy` and `reuse` are names or objects; sessions may share a `DocumentCache`.
    `threshold` is the policy's, by default the published one for the `family` of questions and the
    model that `thresholds` names: "7b", "13b" (LLaMA2) or "vicuna-13b".
    `guided` marks relevant passages in the prompt (IDGR), by default if reuse is approximate.
    `cache_dir` keeps the KV cache of demonstrations and passages on disk, at most `cache_size`
    bytes, for other sessions of the same model in any process.
    `base` is a request whose options every call has, in place of `draft`.
    """

    def __init__(  # noqa: PLR0913 (keyword options)
        self,
        engine: Engine,
        corpus: Corpus,
        *,
        policy: str | Policy = "dragin",
        reuse: str | Reuse | DocumentCache = "exact",
        draft: str = "igpg",
        family: str = "general",
        threshold: float | None = None,
        thresholds: str = TUNED_FOR[0],
        passages: int = PASSAGES,
        max_rounds: int = MAX_ROUNDS,
        guided: bool | None = None,
        style: str = "auto",
        force_answer: bool = True,
        cache_dir: Path | str | None = None,
        cache_size: int = DISK_BYTES,
        base: PreparedRequest | None = None,
    ) -> None:
        if passages < 1 or max_rounds < 0:
            raise InputError("passages must be 1 or more, and max_rounds 0 or more")
        self.engine, self.corpus = engine, corpus
        self._base = base or PreparedRequest(Request([], draft=draft))
        self.draft = self._base.request.draft or engine.default_draft
        self.family = find_family(family)
        if isinstance(policy, str):
            policy = make_policy(
                policy,
                engine,
                family=self.family.name,
                threshold=threshold,
                thresholds=thresholds,
            )
        elif threshold is not None or thresholds != TUNED_FOR[0]:
            raise InputError("a policy object has its own threshold; leave it out")
        self.policy: Policy = policy
        reuse = as_reuse(reuse) if isinstance(reuse, str) else reuse
        if isinstance(reuse, Reuse):
            if cache_dir is not None and reuse.name == "off":
                raise InputError("reuse off caches nothing on disk; choose demos, exact or cics")
            reuse = DocumentCache(engine, reuse, folder=cache_dir, disk_bytes=cache_size)
        elif cache_dir is not None:
            raise InputError("a DocumentCache has its own folder; leave cache_dir out")
        self.cache = reuse
        self.guided = self.cache.reuse.approximate if guided is None else guided
        self.prompter = Prompter(engine, self.family, style, self.guided)
        self.passages, self.max_rounds = passages, max_rounds
        self.force_answer = force_answer
        self.language: Language = find_language()
        self._head_seconds: float | None = None  # None: not prefilled yet

    def ask(self, question: str, params: SamplingParams | None = None) -> Answer:
        """The answer; by default greedy, with the family's max_tokens."""
        stream = self.stream(question, params)
        for _ in stream:
            pass
        return stream.answer

    def stream(self, question: str, params: SamplingParams | None = None) -> AnswerStream:
        """The answer as events; penalties apply within each call."""
        if not question.strip():
            raise InputError("the question is empty")
        params = params or SamplingParams(max_tokens=self.family.max_tokens)
        if params.n != 1:
            raise InputError("a session generates one answer at a time; leave n at 1")
        return AnswerStream(self, question.strip(), params)

    def prefill_demonstrations(self) -> float:
        """Prefill the demonstrations once, if they are cached; returns the seconds."""
        if self._head_seconds is not None:
            return 0.0
        self._head_seconds = 0.0
        head = self.prompter.head
        if self.cache.reuse.caches_head and head.tokens:
            once = SamplingParams(max_tokens=1, ignore_eos=True)
            began = clock()
            prompt = self.cache.prepare([head, Part("text", head.tokens[-1:])], "")
            self.engine.generate(self.request(prompt.tokens, once, prompt.rows, draft="plain"))
            self._head_seconds = clock() - began
        return self._head_seconds

    def request(
        self, prompt: Prompt, params: SamplingParams, rows: PreparedRows, draft: str | None = None
    ) -> PreparedRequest:
        """The request of a call."""
        draft = draft or self.draft
        request = replace(self._base.request, prompt=prompt, params=params, draft=draft)
        return replace(self._base, request=request, rows=rows)
