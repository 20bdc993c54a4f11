"""What is asked of the engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict

from torch import Tensor

from graft.decode.text import Prompt
from graft.draft.drafter import Drafter
from graft.errors import InputError
from graft.models.arena import Extent
from graft.models.language_model import LanguageModel
from graft.sampling import Process, SamplingParams
from graft.tree.draft_tree import DraftTree

# (prompt and output so far, the raw logits [V] its last token was drawn from) -> end here?
StopWhen = Callable[[list[int], Tensor], bool]


class PreparedRows(Protocol):
    """Keys and values for parts of a prompt, from earlier readings (`rag/document_cache.py`).

    The prompt is read from left to right: what is prepared is put in, what is not is computed on
    top of it. Rows that the model would not have computed itself make the answer `approximate`;
    they and all that follows stay with the request.
    """

    tokens: list[int]  # of the whole prompt
    shareable: int | None  # how many of its first ones may be shared with other requests; None: all
    approximate: bool

    def unread(self, known: int) -> tuple[int, int]:
        """First and end of the tokens to compute next, if rows of the first `known` are there."""

    def fill(self, model: LanguageModel, extent: Extent) -> tuple[int, int]:
        """Put in what comes next, up to the tokens to compute; how many tokens got rows that are
        exactly the model's own, and how many others. Between two steps of the engine."""

    def keep(self, model: LanguageModel, extent: Extent) -> None:
        """More tokens of the prompt were computed: keep of them what may be of use again."""


class Constraint(Protocol):
    """What one answer may say, such as a grammar. `tokens` are prompt and output so far; they only
    ever grow, at the end."""

    def process(self, tokens: list[int], logits: Tensor) -> Tensor:
        """Logits [V] without what is forbidden next; called once for every token, in order."""

    def prune(self, tokens: list[int], tree: DraftTree) -> DraftTree:
        """The guesses that are allowed; the tree's root is the last of `tokens`."""


Constrain = Callable[[int], Constraint]  # one for an answer to a prompt of so many tokens


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt (text, token ids or chat messages) and how to answer it.

    `documents` and `prediction` are texts the answer may repeat; they are drafted from but not
    part of the prompt. `process` changes the model's logits before anything else does, and
    `stop_when` is asked after every token; both see each token once, in order, whoever drafts.
    What they get of prompt and answer is one list that grows, to be looked at only.
    `constrain` makes a constraint for each of its answers, applied after `process`; what it forbids
    is not guessed. Beginnings of prompts are shared among requests of the same `cache_salt` alone.

    `rows` are keys and values of a prompt given as token ids, made before. `quotable` are the spans
    of such a prompt that drafts may copy. At most `most_cached` of the prompt's first tokens come
    from what was read before, and stay for others: with 0 the prompt is read anew and leaves
    nothing behind.
    """

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    draft: str | None = None  # a preset; None is the engine's default
    documents: Sequence[str | Sequence[int]] = ()  # or their token ids
    prediction: str | Sequence[int] | None = None
    process: Process | None = None
    stop_when: StopWhen | None = None
    rows: PreparedRows | None = None
    quotable: Sequence[tuple[int, int]] | None = None  # None: all that is no chat template
    most_cached: int | None = None  # None: as many as there are
    constrain: Constrain | None = None
    draft_tokens: int | None = None  # most guesses in a step; None leaves it to the preset
    cache_salt: str = ""
    drafters: Mapping[str, Drafter] | None = None  # whose presets `draft` names; None: the engine's


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
