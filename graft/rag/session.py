"""Questions answered over a corpus: write, look up, go on, until the answer is there.

A policy says when to search and for what; each call of the model gets the demonstrations, the
passages of the round, the question and the text so far, and drafts from all but the first (IDR2).
"""

from pathlib import Path

from graft.decode.engine import Engine
from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.decode.stats import clock
from graft.errors import InputError
from graft.rag.answer import Answer
from graft.rag.answering import AnswerStream
from graft.rag.attention import Attention
from graft.rag.corpus import Corpus
from graft.rag.document_cache import DISK_BYTES
from graft.rag.families import find_family
from graft.rag.parts import Part
from graft.rag.policies import make_policy
from graft.rag.policy import Policy
from graft.rag.prompt import Prompter
from graft.rag.reuse import Reuse, as_reuse
from graft.rag.round_reuse import RoundReuse, reuse_for
from graft.rag.sentences import Language, find_language
from graft.sampling import SamplingParams

PASSAGES = 3  # a round reads
MOST_ROUNDS = 16  # that look something up


class Session:
    """A model, a corpus and the way they work together.

    `policy` and `reuse` are names or objects, `reuse` also one that several sessions share
    (`round_reuse.DocumentReuse`); `threshold` is the policy's number, by default the
    one published for the `family` of questions. `guided` tells the model which passages matter
    (IDGR), by default where reuse is approximate. With `cache_dir` what was read of demonstrations
    and passages lies there too, `cache_size` bytes of it, for other sessions of the same model in
    this or another process. `attention` is whom DRAGIN asks for weights.
    """

    def __init__(  # noqa: PLR0913  every option by its name
        self,
        engine: Engine,
        corpus: Corpus,
        *,
        policy: str | Policy = "dragin",
        reuse: str | Reuse | RoundReuse = "exact",
        draft: str = "igpg",
        family: str = "general",
        threshold: float | None = None,
        passages: int = PASSAGES,
        most_rounds: int = MOST_ROUNDS,
        guided: bool | None = None,
        style: str = "auto",
        force_answer: bool = True,
        attention: Attention | None = None,
        cache_dir: Path | str | None = None,
        cache_size: int = DISK_BYTES,
    ) -> None:
        if passages < 1 or most_rounds < 0:
            raise InputError("a round reads at least one passage, and there are 0 or more rounds")
        self.engine, self.corpus, self.draft = engine, corpus, draft
        chosen = as_reuse(reuse) if isinstance(reuse, str) else reuse
        self.family = find_family(family)
        if isinstance(policy, str):
            policy = make_policy(
                policy, engine, family=family, threshold=threshold, attention=attention
            )
        elif threshold is not None or attention is not None:
            raise InputError("a policy that is an object has its own threshold and attention")
        self.policy: Policy = policy
        if isinstance(chosen, Reuse):
            chosen = reuse_for(engine, chosen, folder=cache_dir, disk_bytes=cache_size)
        elif cache_dir is not None:
            raise InputError("a reuse that is an object has its own cache; leave cache_dir out")
        self.reuse: RoundReuse = chosen
        self.guided = self.reuse.approximate if guided is None else guided
        self.prompter = Prompter(engine, self.family, style, self.guided)
        self.passages, self.most_rounds = passages, most_rounds
        self.force_answer = force_answer
        self.language: Language = find_language()
        self._head_seconds: float | None = None  # None: not read yet

    def ask(self, question: str, params: SamplingParams | None = None) -> Answer:
        """The whole answer; by default greedy and as long as the family's answers are."""
        stream = self.stream(question, params)
        for _ in stream:
            pass
        return stream.answer

    def stream(self, question: str, params: SamplingParams | None = None) -> AnswerStream:
        """The same as it comes; penalties on what was written count from each call on."""
        if not question.strip():
            raise InputError("the question is empty")
        params = params or SamplingParams(max_tokens=self.family.max_tokens)
        if params.n != 1:
            raise InputError("a session writes one answer at a time; leave n at 1")
        return AnswerStream(self, question.strip(), params)

    def read_demonstrations(self) -> float:
        """Read what every prompt begins with once, where it is kept; how many seconds that took."""
        if self._head_seconds is not None:
            return 0.0
        self._head_seconds = 0.0
        head = self.prompter.head
        if self.reuse.keeps_head and head.tokens:
            once = SamplingParams(max_tokens=1, ignore_eos=True)
            began = clock()
            handed = self.reuse.hand([head, Part("text", head.tokens[-1:])], "")
            request = Request(handed.tokens, once, draft="plain")
            self.engine.generate(PreparedRequest(request, **handed.options))
            self._head_seconds = clock() - began
        return self._head_seconds
