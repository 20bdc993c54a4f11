"""The engine: a loaded model that answers requests."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Unpack, cast, overload

from graft.decode.build import SequenceBuilder
from graft.decode.loop import DecodeLoop
from graft.decode.output import Result
from graft.decode.prepared_request import PreparedRequest, as_prepared, is_batch
from graft.decode.request import Options, Request
from graft.decode.step_lock import Outcome
from graft.decode.stream import AsyncStream, Stream
from graft.decode.text import Encoder, Prompt
from graft.draft.copies.texts import learn
from graft.draft.drafter import Drafter, DraftersByName
from graft.errors import InputError
from graft.match.pool import Pools
from graft.models.load import LoadedModel
from graft.models.step_costs import StepCosts
from graft.sampling import SamplingParams
from graft.verify.rapid import Shift, Shifting
from graft.verify.verdict import Verifier

MAX_UNREAD = 64  # events after which a stream that is not read pauses
Input = Prompt | Request | PreparedRequest


class Engine:
    """A model that answers prompts. `graft.load` makes one.

    Requests are batched, up to `max_batch` at once, and may come from several threads. A prompt is
    text, a list of token ids or a list of chat messages.
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
        self.loaded, self.model = loaded, loaded.model
        self.drafters, self.default_draft = drafters, default_draft
        self.encoder = Encoder(loaded.tokenizer, self.model.vocabulary)
        self.loop = DecodeLoop(self.model, verify, costs, max_batch=max_batch)
        self._verify = verify
        self._numbers = itertools.count()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="graft")  # starts when needed

    @overload  # text and token ids are sequences too; `is_batch` tells them apart
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Input, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Input],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> list[Result]: ...

    def generate(
        self,
        prompt: Input | Sequence[Input],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Result | list[Result]:
        """Answer a prompt, or a list of prompts in one batch.

            result = engine.generate("Once upon a time", graft.SamplingParams(max_tokens=50))
            print(result.text, result.stats.tokens_per_second)

        `draft`, `documents` and `prediction` are those of `Request`; a Request has its own. Raises
        InputError for a prompt or option that cannot be used, ContextLengthError for a prompt that
        is too long.
        """
        batched = is_batch(prompt)
        prompts = cast(Sequence[Input], prompt if batched else [prompt])
        requests = [as_prepared(each, params, **options) for each in prompts]
        streams: list[Stream] = []
        try:
            for request in requests:
                streams.append(self.submit(request, streaming=False))
            results = [stream.finish() for stream in streams]
        finally:
            for stream in streams:
                stream.close()
        return results if batched else results[0]

    def stream(
        self, prompt: Input, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> Stream:
        """Answer a prompt token by token.

            stream = engine.stream("Once upon a time")
            for event in stream:
                print(event.text, end="")
            print(stream.result.finish_reason)

        Options and errors are those of `generate`.
        """
        return self.submit(as_prepared(prompt, params, **options))

    def astream(
        self, prompt: Input, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> AsyncStream:
        """`stream` for `async for`; steps run in a thread of their own."""
        return AsyncStream(self.stream(prompt, params, **options), self._executor)

    def submit(self, request: Request | PreparedRequest, *, streaming: bool = True) -> Stream:
        """Queue a request. Without `streaming` it has no events, only a result."""
        prepared = as_prepared(request)
        builder = SequenceBuilder(self.loaded, self.encoder, self._numbers)
        sequences = builder.build(prepared, self._drafter(prepared))
        verify = self._verifier(prepared.request.shift)
        for sequence in sequences:
            sequence.verify, sequence.streaming = verify, streaming
            sequence.max_unread = MAX_UNREAD if streaming else None
        self.loop.scheduler.add(sequences)
        return Stream(self.loop, sequences)

    def _verifier(self, shift: Shift | None) -> Verifier | None:
        """A request's own verifier."""
        if shift is None:
            return None
        if not isinstance(self._verify, Shifting):
            raise InputError("a shift needs an engine with the verifier rapid or rapid-phat")
        return self._verify.with_shift(shift)

    @property
    def shift(self) -> Shift | None:
        """The shift of requests that have none; None for a verifier that does not shift."""
        return self._verify.shift if isinstance(self._verify, Shifting) else None

    def _drafter(self, prepared: PreparedRequest) -> Drafter:
        name = prepared.request.draft or self.default_draft
        drafters = self.drafters if prepared.drafters is None else prepared.drafters
        if name in drafters:
            return drafters[name]
        return self.exclusive(lambda: drafters[name])  # making a drafter may run the model

    def keep_answers(self, pools: Pools) -> None:
        """Add finished answers to these pools from now on."""
        self.loop.scheduler.learn = partial(learn, pools)

    def remember(self, prompt: Prompt) -> None:
        """Keep the cached keys and values of a prompt on disk, if `load` got a `disk_cache`."""
        tokens = self.encoder.prompt(prompt).tokens
        self.loop.lock.exclusive(lambda: self.model.prefixes.persist(tokens))

    def exclusive(self, action: Callable[[], Outcome]) -> Outcome:
        """Run `action`, which may use the model, between two steps; returns what it returns."""
        return self.loop.exclusive(action)

    @property
    def model_name(self) -> str:
        """The name that the model was loaded by."""
        return self.loaded.checkpoint.name

    @property
    def is_exact(self) -> bool:
        """Whether drafts and other requests cannot change the output, not even by rounding."""
        return self.loaded.is_exact

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
        """The maximum number of tokens of prompt and answer together."""
        return self.model.context_length

    @property
    def presets(self) -> list[str]:
        """The names that `draft` may have."""
        return self.drafters.names

    @property
    def max_batch(self) -> int:
        """The maximum number of sequences that run at once."""
        return self.loop.scheduler.max_batch

    @property
    def running(self) -> int:
        """The number of running sequences."""
        return self.loop.scheduler.running

    @property
    def waiting(self) -> int:
        """The number of queued sequences."""
        return self.loop.scheduler.waiting
