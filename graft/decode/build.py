"""From a request to its sequences; everything that can refuse a request happens here."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from graft.decode.prepared_request import Constraint, PreparedRequest
from graft.decode.request import Request
from graft.decode.sequence import Sequence
from graft.decode.stats import Stats
from graft.decode.text import Detokenizer, EncodedPrompt, Encoder
from graft.draft.drafter import DraftContext, Drafter, options_of
from graft.draft.options import DraftOptions
from graft.errors import ContextLengthError, InputError
from graft.models.load import LoadedModel
from graft.sampling import Process, Sampler, choose_seed


@dataclass(frozen=True, slots=True)
class SequenceBuilder:
    """Builds the sequences of a request; `numbers` identify sequences for the drafters."""

    loaded: LoadedModel
    encoder: Encoder
    numbers: Iterator[int]

    def build(self, prepared: PreparedRequest, drafter: Drafter) -> list[Sequence]:
        """The n sequences of a request; InputError if it cannot be answered."""
        request, rows = prepared.request, prepared.rows
        encoded = self.encoder.prompt(request.prompt)
        documents = [self.encoder.text(text) for text in request.documents]
        prediction = self.encoder.text(request.prediction) if request.prediction else []
        if rows and rows.tokens != encoded.tokens:
            raise InputError("the prepared rows are of another prompt; pass its token ids")
        self._check_length(encoded)
        options = _draft_options(request)
        options.check_used(options_of(drafter))
        seed = choose_seed() if request.params.seed is None else request.params.seed
        prepared = replace(
            prepared, request=replace(request, params=replace(request.params, seed=seed))
        )
        sequences: list[Sequence] = []
        for _ in range(request.params.n):
            context = DraftContext(next(self.numbers), encoded.tokens, list(encoded.quotable))
            context.documents, context.prediction = documents, prediction
            context.salt, context.options = request.cache_salt, options
            sequences.append(self._sequence(prepared, context, drafter, sequences))
        return sequences

    def _check_length(self, encoded: EncodedPrompt) -> None:
        count, context_length = len(encoded.tokens), self.loaded.model.context_length
        if not count:
            raise InputError("the prompt has no tokens; write a question")
        if count >= context_length:
            raise ContextLengthError(
                f"the prompt has {count} tokens but {self.loaded.checkpoint.name} takes at most "
                f"{context_length - 1}; shorten the document or use a model with a longer context"
            )

    def _sequence(
        self,
        prepared: PreparedRequest,
        context: DraftContext,
        drafter: Drafter,
        earlier: list[Sequence],
    ) -> Sequence:
        """The next answer to a prompt, after those built earlier."""
        request, rows, model = prepared.request, prepared.rows, self.loaded.model
        params, count = request.params, len(context.prompt)
        constraint = prepared.constrain(count) if prepared.constrain else None
        context.sampler = Sampler(
            params,
            context.prompt,
            model.vocabulary,
            choice=len(earlier),
            process=_combined(request.process, constraint),
            keep_history=request.stop_when is not None,
        )
        ends = frozenset(params.stop_token_ids)
        return Sequence(
            context=context,
            sampler=context.sampler,
            drafter=drafter,
            detokenizer=Detokenizer(self.loaded.tokenizer, params.stop),
            end_tokens=ends if params.ignore_eos else ends | self.loaded.eos_ids,
            tokens_left=min(params.max_tokens, model.context_length - count),
            stats=Stats(prompt_tokens=count, approximate=bool(rows and rows.approximate)),
            rows=rows,
            stop_when=request.stop_when,
            max_cached=prepared.max_cached,
            constraint=constraint,
            leader=earlier[0] if earlier else None,
        )


def _draft_options(request: Request) -> DraftOptions:
    return DraftOptions(
        request.draft_tokens, request.confidence, request.retrieved, request.rasd, request.casd
    )


def _combined(process: Process | None, constraint: Constraint | None) -> Process | None:
    """A caller's change of the logits, then the constraint's."""
    if constraint is None:
        return process
    if process is None:
        return constraint.process
    return lambda tokens, logits: constraint.process(tokens, process(tokens, logits))
