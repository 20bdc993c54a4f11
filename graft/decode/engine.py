"""The loop: draft, score, verify, commit, observe."""

import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar, Unpack

from graft.decode.batch import Batch
from graft.decode.in_flight import InFlightStep, by_drafter, place_side_by_side
from graft.decode.pace import readable_tokens, seconds_by_nodes
from graft.decode.request import Constraint, Options, Request, as_request, is_batch
from graft.decode.sequence import Result
from graft.decode.sequence import Sequence as Running
from graft.decode.stats import Stats, clock
from graft.decode.step_lock import StepLock
from graft.decode.stream import AsyncStream, Stream
from graft.decode.text import Detokenizer, Encoder, Prompt
from graft.draft.drafter import Budget, DraftContext, Drafter, DraftersByName, UpdatesAsync
from graft.errors import ContextLengthError, InputError
from graft.models.load import LoadedModel
from graft.models.step_costs import StepCosts
from graft.sampling import Process, Sampler, SamplingParams, choose_seed
from graft.tree.draft_tree import DraftTree, chain, root_only
from graft.verify.draws import Draws
from graft.verify.verdict import Verifier

log = logging.getLogger(__name__)
MOST_NODES = 91  # of one tree, root excluded: 59 of EAGLE-2's and 32 retrieved
PATIENCE = 64  # unread tokens after which a stream pauses
Outcome = TypeVar("Outcome")


class Engine:
    """A model that answers; `drafters` are its presets by name, made when they are first needed.

    Requests run together, up to `max_batch` of them, and may come from several threads.
    """

    load_seconds: float = 0.0  # set by `graft.load`

    def __init__(
        self,
        loaded: LoadedModel,
        drafters: DraftersByName,
        verify: Verifier,
        costs: StepCosts,
        *,
        default_draft: str = "auto",
        max_batch: int = 16,
    ) -> None:
        self.loaded, self.model, self.costs = loaded, loaded.model, costs
        self.drafters, self._verify = drafters, verify
        self.default_draft = default_draft
        self.encoder = Encoder(loaded.tokenizer, self.model.vocabulary)
        self.step_lock = StepLock()
        self._batch = Batch(self.model, most=max_batch, spare_rows=MOST_NODES + 1)
        self._flight: InFlightStep | None = None  # the step under way
        self._numbers = itertools.count()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="graft")  # starts when needed

    def stream(
        self,
        prompt: Prompt | Request,
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """Answer a prompt (text, token ids or chat messages), token by token.

        `draft` names a preset. `documents` and `prediction` are texts the answer may repeat; they
        are drafted from but not part of the prompt. A `Request` brings all of these itself.
        """
        return self.submit(as_request(prompt, params, **options))

    def astream(
        self,
        prompt: Prompt | Request,
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """The same for `async for`; steps run in a thread of their own."""
        return AsyncStream(self.stream(prompt, params, **options), self._executor)

    def generate(
        self,
        prompt: Prompt | Request | Sequence[Prompt | Request],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Result | list[Result]:
        """The whole answer at once; for a list of prompts or requests a list of answers."""
        together = is_batch(prompt)
        requests = [
            as_request(each, params, **options) for each in (prompt if together else [prompt])
        ]
        streams: list[Stream] = []
        try:
            for request in requests:
                streams.append(self.submit(request, heard=False))
            results = [stream.finish() for stream in streams]
        finally:
            for stream in streams:
                stream.close()
        return results if together else results[0]

    def remember(self, prompt: Prompt) -> None:
        """Keep what was read of a prompt on disk too, where the engine has a disk cache."""
        tokens = self.encoder.prompt(prompt).tokens
        self.step_lock.exclusive(lambda: self.model.prefixes.persist(tokens))

    def exclusive(self, action: Callable[[], Outcome]) -> Outcome:
        """Use the model between two steps; one that is on its way is sent again."""
        outcome: list[Outcome] = []

        def alone() -> None:
            self._flight = None
            outcome.append(action())

        self.step_lock.exclusive(alone)
        return outcome[0]

    def advance(self) -> None:
        """One forward for everybody: a tree for each answer being written, and the next piece of
        the prompts being read.

        Where the device computes by itself, the next step is sent as soon as the last one has
        landed; texts and events are made, and read by callers, while it is on its way. But nobody
        waits for an answer's first token until others are drafted.
        """
        flight = self._flight or self._send()
        self._flight = None
        if flight:
            ahead = self.model.asynchronous and not flight.begins
            try:
                flight.land(self.model, self._verify)
                if ahead:
                    self._flight = self._send()
            finally:
                flight.tell()
            flight.charge(until=self._flight.since if self._flight else clock())
        self.sweep()

    def sweep(self) -> None:
        """Let go of what has ended, and of a step that nobody waits for any more."""
        if self._flight and not self._flight.wanted:
            self._flight = None
        self._batch.sweep()

    def _send(self) -> InFlightStep | None:
        """Draft, and have everything scored; None where nobody wants anything."""
        since = clock()
        self._batch.sweep()
        self._batch.admit()
        writing = self._batch.writing
        pieces = []
        if self._batch.reading:
            pieces = self._batch.pieces(readable_tokens(self.costs, writing, self.model.chunk))
        if not pieces and not writing:
            return None
        trees = self._draft(writing, read=sum(len(piece) for _, piece in pieces))
        pieces = self._batch.fill(pieces)  # may run forwards: features are asked for before
        if not pieces and not writing:
            return None
        parts = place_side_by_side(
            [(sequence, chain(piece)) for sequence, piece in pieces],
            list(zip(writing, trees, strict=True)),
        )
        logits, counts = self.model.score_all(
            [part.sequence.extent for part in parts],
            [part.tree for part in parts],
            last_only=[part.reads for part in parts],
        )
        ahead = self.model.asynchronous or logits.is_cuda
        draws = Draws([part.asked for part in parts], logits) if ahead else None
        for sequence, _ in pieces:  # the index of its prompt is built while the device reads it
            with sequence.guard():
                sequence.start_drafter()
        self._reflect(writing)
        return InFlightStep(parts, list(logits.split(counts)), draws, since)

    def _draft(self, writing: list[Running], *, read: int) -> list[DraftTree]:
        """Every drafter proposes for its own sequences, knowing what else is in the step."""
        trees: list[DraftTree | None] = [None] * len(writing)
        rows = read + len(writing)
        for drafter, mine in by_drafter(writing):
            nodes = MOST_NODES * len(mine)
            seconds = seconds_by_nodes(self.costs, writing, rows=rows, read=read, nodes=nodes)
            budget = Budget(MOST_NODES, seconds, base_tokens=len(writing), reads=read > 0)
            try:
                proposed = drafter.propose([writing[i].context for i in mine], budget)
            except Exception as error:  # no reason to lose what others draft with
                _blame(error, [writing[i] for i in mine])
                proposed = [root_only(writing[i].context.tokens[-1]) for i in mine]
            for i, tree in zip(mine, proposed, strict=True):
                trees[i] = writing[i].allowed(tree)
                rows += len(trees[i]) - 1
        return trees

    def _reflect(self, writing: list[Running]) -> None:
        """Drafters think while the device computes."""
        for drafter, mine in by_drafter(writing):
            if isinstance(drafter, UpdatesAsync):
                try:
                    drafter.update_async()
                except Exception as error:
                    _blame(error, [writing[i] for i in mine])

    def submit(self, request: Request, *, heard: bool = True) -> Stream:
        """Take in a request; one that is not `heard` has no events, only a result."""
        sequences = self._begin(request)
        for sequence in sequences:
            sequence.heard, sequence.patience = heard, PATIENCE if heard else None
        self._batch.add(sequences)
        return Stream(self, sequences)

    def _begin(self, request: Request) -> list[Running]:
        """The n sequences of a request, after everything that may refuse it."""
        params = request.params
        drafter = self._drafter(request)
        encoded = self.encoder.prompt(request.prompt)
        documents = [self.encoder.text(text) for text in request.documents]
        predicted = self.encoder.text(request.prediction) if request.prediction else []
        rows = request.rows
        if rows and rows.tokens != encoded.tokens:
            raise InputError("the prepared rows are of another prompt; pass its token ids")
        count, most = len(encoded.tokens), self.model.context_length
        if not count:
            raise InputError("the prompt has no tokens; write a question")
        quotable = encoded.quotable if request.quotable is None else list(request.quotable)
        if count >= most:
            raise ContextLengthError(
                f"the prompt has {count} tokens but {self.model_name} reads at most {most - 1}; "
                "shorten the document or use a model with a longer context"
            )
        ends = frozenset(params.stop_token_ids)
        params = replace(params, seed=choose_seed() if params.seed is None else params.seed)
        sequences: list[Running] = []
        for choice in range(params.n):
            context = DraftContext(next(self._numbers), encoded.tokens, quotable)
            context.documents, context.prediction = documents, predicted
            context.salt = request.cache_salt
            constraint = request.constrain(count) if request.constrain else None
            context.sampler = Sampler(
                params, encoded.tokens, self.model.vocabulary,
                choice=choice, process=_both(request.process, constraint),
                remembers=request.stop_when is not None,
            )  # fmt: skip
            sequences.append(
                Running(
                    context=context,
                    sampler=context.sampler,
                    drafter=drafter,
                    detokenizer=Detokenizer(self.loaded.tokenizer, params.stop),
                    end_tokens=ends if params.ignore_eos else ends | self.loaded.eos_ids,
                    room=min(params.max_tokens, most - count),
                    stats=Stats(prompt_tokens=count, approximate=bool(rows and rows.approximate)),
                    rows=rows,
                    stop_when=request.stop_when,
                    most_cached=request.most_cached,
                    constraint=constraint,
                    draft_tokens=request.draft_tokens,
                    leader=sequences[0] if sequences else None,
                )
            )
        return sequences

    def _drafter(self, request: Request) -> Drafter:
        name = request.draft or self.default_draft
        drafters = self.drafters if request.drafters is None else request.drafters
        if name in drafters:
            return drafters[name]
        return self.exclusive(lambda: drafters[name])  # making one may run the model

    @property
    def busy(self) -> bool:
        """Whether a step is on its way whose logits nobody has read yet."""
        return self._flight is not None

    @property
    def model_name(self) -> str:
        """What the model was called when it was loaded."""
        return self.loaded.checkpoint.name

    @property
    def dtype(self) -> str:
        """fp32, bf16 or fp16."""
        return self.loaded.dtype

    @property
    def device(self) -> str:
        """cpu, cuda, ..."""
        return self.loaded.device

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together."""
        return self.model.context_length

    @property
    def presets(self) -> list[str]:
        """Names `draft` may take."""
        return self.drafters.names

    @property
    def max_batch(self) -> int:
        """How many sequences run at once."""
        return self._batch.most

    @property
    def running(self) -> int:
        """How many sequences have rows."""
        return self._batch.running

    @property
    def waiting(self) -> int:
        """How many sequences wait for some."""
        return self._batch.waiting


def _blame(error: Exception, mine: list[Running]) -> None:
    """A drafter failed: so have the requests it drafts for."""
    log.error("a drafter failed", exc_info=error)
    for sequence in mine:
        sequence.error = error


def _both(process: Process | None, constraint: Constraint | None) -> Process | None:
    """A caller's change of the logits, then the constraint's."""
    if constraint is None:
        return process
    if process is None:
        return constraint.process
    return lambda tokens, logits: constraint.process(tokens, process(tokens, logits))
