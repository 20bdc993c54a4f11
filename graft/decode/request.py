"""What is asked of the engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from torch import Tensor

from graft.decode.text import Prompt
from graft.errors import InputError
from graft.sampling import Process, SamplingParams

# (prompt and output so far, the raw logits [V] its last token was drawn from) -> end here?
StopWhen = Callable[[list[int], Tensor], bool]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt (text, token ids or chat messages) and how to answer it.

    `documents` and `prediction` are texts the answer may repeat; they are drafted from but not
    part of the prompt. `process` changes the model's logits before anything else does, and
    `stop_when` is asked after every token; both see each token once, in order, whoever drafts.

    `quotable` are the spans of a prompt of token ids that drafts may copy. At most `most_cached` of
    the prompt's first tokens come from what was read before, and stay for others: with 0 the prompt
    is read anew and leaves nothing behind.
    """

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    draft: str | None = None  # a preset; None is the engine's default
    documents: Sequence[str | Sequence[int]] = ()  # or their token ids
    prediction: str | Sequence[int] | None = None
    process: Process | None = None
    stop_when: StopWhen | None = None
    quotable: Sequence[tuple[int, int]] | None = None  # None: all that is no chat template
    most_cached: int | None = None  # None: as many as there are


class Options(TypedDict, total=False):
    """What may be said of a prompt besides its parameters; see `Request`."""

    draft: str | None
    documents: Sequence[str | Sequence[int]]
    prediction: str | Sequence[int] | None


def is_batch(prompt: Any) -> bool:  # noqa: ANN401
    """Whether this is a list of prompts or requests rather than one (ids or messages)."""
    return isinstance(prompt, list | tuple) and any(
        isinstance(item, Request | str | list | tuple) for item in prompt
    )


def as_request(
    prompt: Prompt | Request,
    params: SamplingParams | None,
    *,
    draft: str | None = None,
    documents: Sequence[str | Sequence[int]] = (),
    prediction: str | Sequence[int] | None = None,
) -> Request:
    """A request from a prompt and its options, which a Request brings along itself."""
    if not isinstance(prompt, Request):
        return Request(prompt, params or SamplingParams(), draft, documents, prediction)
    if params or draft or documents or prediction:
        raise InputError("a Request has its own parameters; set them there")
    return prompt
