"""What a caller asks of the engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from torch import Tensor

from graft.decode.text import Prompt
from graft.draft.options import Casd, Rasd
from graft.sampling import Process, SamplingParams
from graft.verify.rapid import Shift

# (prompt and output so far, the raw logits [V] its last token was sampled from) -> stop here?
StopWhen = Callable[[list[int], Tensor], bool]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt (text, token ids or chat messages) and how to answer it.

    `draft` names a preset; None is the engine's default. `documents` and `prediction` are texts, or
    their token ids, that the answer may repeat: drafters copy from them, the model does not see
    them. Requests with the same `cache_salt` share cached prompt prefixes; others do not.

    `draft_tokens` is the maximum of draft tokens per step; no more are drafted. `confidence`,
    `retrieved`, `rasd` and `casd` are those of `graft.load` for this request alone, `shift` that of
    an engine with the verifier `rapid` or `rapid-phat`. None leaves them as they are. A number that
    the draft does not use is an InputError.

    `process(tokens, logits)` returns the logits [V] to sample from, before penalties and filters.
    `stop_when(tokens, logits)` is called after every token and ends the answer when it returns
    True. Both are called once per token, in order, whatever is drafted. `tokens` is the prompt and
    the output so far: one list that grows; do not change it.
    """

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    draft: str | None = None
    documents: Sequence[str | Sequence[int]] = ()
    prediction: str | Sequence[int] | None = None
    process: Process | None = None
    stop_when: StopWhen | None = None
    draft_tokens: int | None = None
    shift: Shift | None = None
    cache_salt: str = ""
    confidence: float | None = None
    retrieved: int | str | None = None
    rasd: Rasd | None = None
    casd: Casd | None = None


class Options(TypedDict, total=False):
    """Keyword arguments that make a `Request` of a prompt and its sampling parameters."""

    draft: str | None
    documents: Sequence[str | Sequence[int]]
    prediction: str | Sequence[int] | None
