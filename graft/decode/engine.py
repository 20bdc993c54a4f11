"""The loop: draft, score, verify, commit, observe."""

import itertools
import threading
from collections.abc import Generator, Iterator, Sequence

from graft.decode.sequence import Result, TokenEvent
from graft.decode.sequence import Sequence as Running
from graft.decode.stats import Stats, clock
from graft.decode.text import Detokenizer, Encoder, Prompt
from graft.draft.drafter import Budget, DraftContext, Drafter
from graft.errors import ContextLengthError, InputError
from graft.models.language_model import PREFILL_CHUNK, TargetStep
from graft.models.load import LoadedModel
from graft.models.step_costs import StepCosts
from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import DraftTree, root_only
from graft.tree.prune import shallow
from graft.verify.verdict import Verifier

MOST_NODES = 63  # of one tree, root excluded
ROOM_AHEAD = 512  # rows taken for the answer at first; more come when it grows


class Engine:
    """A model that answers; `drafters` are its presets by name."""

    def __init__(
        self,
        loaded: LoadedModel,
        drafters: dict[str, Drafter],
        verify: Verifier,
        costs: StepCosts,
        *,
        default_draft: str = "auto",
    ) -> None:
        self.loaded, self.model, self.costs = loaded, loaded.model, costs
        self.drafters, self._verify = drafters, verify
        self.default_draft = default_draft
        self.encoder = Encoder(loaded.tokenizer, self.model.vocabulary)
        self._numbers = itertools.count()
        self._lock = threading.RLock()  # one step at a time; streams may take turns

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        draft: str | None = None,
        documents: Sequence[str] = (),
        prediction: str | None = None,
    ) -> "Stream":
        """Answer a prompt (text, token ids or chat messages), token by token.

        `documents` and `prediction` are texts the answer may repeat; they are drafted from but
        not part of the prompt.
        """
        with self._lock:
            texts = [self.encoder.text(text) for text in documents]
            predicted = self.encoder.text(prediction) if prediction else []
            sequence = self._begin(prompt, params or SamplingParams(), draft)
            sequence.context.documents, sequence.context.prediction = texts, predicted
        return Stream(self, sequence)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        draft: str | None = None,
        documents: Sequence[str] = (),
        prediction: str | None = None,
    ) -> Result:
        """The whole answer at once; see `stream`."""
        stream = self.stream(
            prompt, params, draft=draft, documents=documents, prediction=prediction
        )
        for _ in stream:
            pass
        return stream.result

    def prefill(self, sequence: Running) -> TokenEvent:
        """Read the prompt in chunks, draw the first token, tell the drafter."""
        prompt = sequence.context.prompt
        for start in range(0, len(prompt), PREFILL_CHUNK):
            with self._lock:
                chunk = prompt[start : start + PREFILL_CHUNK]
                logits = self.model.prefill_chunk(sequence.extent, chunk)
        event = sequence.emit_first(sequence.sampler.draw(logits, []), logits)
        sequence.drafter.start(sequence.context)
        return event

    def step(self, sequences: list[Running]) -> list[list[TokenEvent]]:
        """One target forward for all sequences; the tokens each of them gained."""
        with self._lock:
            trees = self._draft(sequences)
            logits = self.model.score([s.extent for s in sequences], trees)
            emitted, steps = [], []
            for sequence, tree, scores in zip(sequences, trees, logits, strict=True):
                verdict = self._verify(tree, scores, sequence.sampler)
                self.model.commit(sequence.extent, verdict.path)
                emitted.append(list(sequence.emit(tree, verdict, scores)))
                steps.append(
                    TargetStep(sequence.context.sequence, [event.token for event in emitted[-1]])
                )
            for sequence, step in zip(sequences, steps, strict=True):
                sequence.drafter.observe([step])
            return emitted

    def release(self, sequence: Running) -> None:
        """Give back what a sequence held."""
        with self._lock:
            sequence.drafter.finish(sequence.context.sequence)
            self.model.close(sequence.extent)

    def _draft(self, sequences: list[Running]) -> list[DraftTree]:
        """Every drafter proposes for its own sequences; near a sequence's end trees are no deeper
        than it may still emit, which also keeps them inside the model's context."""
        trees = [root_only(sequence.context.root) for sequence in sequences]
        for drafter in {id(s.drafter): s.drafter for s in sequences}.values():
            mine = [i for i, s in enumerate(sequences) if s.drafter is drafter]
            budgets = [Budget(MOST_NODES, self.costs.at(sequences[i].extent.total)) for i in mine]
            proposed = drafter.propose([sequences[i].context for i in mine], budgets)
            for i, tree in zip(mine, proposed, strict=True):
                trees[i] = shallow(tree, sequences[i].room - 1)
        return trees

    def _begin(self, prompt: Prompt, params: SamplingParams, draft: str | None) -> Running:
        name = draft or self.default_draft
        if name not in self.drafters:
            raise InputError(f"unknown draft {name!r}; choose one of {', '.join(self.drafters)}")
        encoded = self.encoder.prompt(prompt)
        count, most = len(encoded.tokens), self.model.context_length
        if count >= most:
            raise ContextLengthError(
                f"the prompt has {count} tokens but {self.model_name} reads at most {most - 1}; "
                "shorten the document or use a model with a longer context"
            )
        ends, room = frozenset(params.stop_token_ids), min(params.max_tokens, most - count)
        # first what may refuse the request, then the rows
        sampler = Sampler(params, encoded.tokens, self.model.vocabulary)
        sequence = Running(
            context=DraftContext(next(self._numbers), encoded.tokens, encoded.quotable),
            extent=self.model.open(count + min(room, ROOM_AHEAD) + MOST_NODES + 1),
            sampler=sampler,
            drafter=self.drafters[name],
            detokenizer=Detokenizer(self.loaded.tokenizer, params.stop),
            end_tokens=ends if params.ignore_eos else ends | self.loaded.eos_ids,
            room=room,
            stats=Stats(prompt_tokens=count),
        )
        return sequence

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
        return list(self.drafters)


class Stream:
    """The tokens of one answer as they come; `result` is complete when they are through."""

    def __init__(self, engine: Engine, sequence: Running) -> None:
        self._engine, self._sequence = engine, sequence
        self._events = self._run()
        self._open = True

    def __iter__(self) -> Iterator[TokenEvent]:
        return self._events

    def _run(self) -> Generator[TokenEvent]:
        engine, sequence = self._engine, self._sequence
        stats = sequence.stats
        try:
            start = clock()
            event = engine.prefill(sequence)
            stats.prefill_seconds = clock() - start
            yield event
            while sequence.finish_reason is None and self._open:
                start = clock()
                (events,) = engine.step([sequence])
                stats.decode_seconds += clock() - start
                yield from events
        finally:
            self.close()

    def close(self) -> None:
        """Stop here and free the rows; safe to call at any time, also twice."""
        if self._open:
            self._open = False
            self._engine.release(self._sequence)
            if not self._events.gi_running:
                self._events.close()  # nobody may go on over rows that are free

    def __del__(self) -> None:
        self.close()

    @property
    def result(self) -> Result:
        """The answer so far."""
        return self._sequence.result()
