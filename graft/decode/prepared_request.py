"""A request with what only Graft's own callers set: the server, adaptive RAG, integrations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from graft.decode.request import Request
from graft.decode.text import Prompt
from graft.draft.drafter import DraftersByName
from graft.errors import InputError
from graft.models.arena import Extent
from graft.models.language_model import LanguageModel
from graft.sampling import SamplingParams
from graft.tree.draft_tree import DraftTree


class PreparedRows(Protocol):
    """Keys and values for parts of a prompt, computed earlier (`rag/document_cache.py`).

    The prompt is prefilled from left to right: prepared parts are inserted, the others computed on
    top of them. Rows that the model would not have computed itself make the answer `approximate`;
    they and all rows after them are not shared with other requests.
    """

    tokens: list[int]  # of the whole prompt
    shareable: int | None  # first tokens that other requests may share; None: all
    approximate: bool

    def unread(self, known: int) -> tuple[int, int]:
        """Start and end of the tokens to compute next when the first `known` have rows."""

    def fill(self, model: LanguageModel, extent: Extent) -> tuple[int, int]:
        """Insert the rows up to the next tokens to compute, between two steps of the engine.

        Returns how many tokens got rows equal to the model's own, and how many got others.
        """

    def keep(self, model: LanguageModel, extent: Extent) -> None:
        """Called when more prompt tokens are computed: store the rows that can be reused."""


class Constraint(Protocol):
    """Limits one answer, for example to a grammar.

    `tokens` are prompt and output so far; calls only ever append to them.
    """

    def process(self, tokens: list[int], logits: Tensor) -> Tensor:
        """Logits [V] with forbidden tokens masked; called once for every token, in order."""

    def prune(self, tokens: list[int], tree: DraftTree) -> DraftTree:
        """The allowed nodes of a draft tree whose root is the last of `tokens`."""


Constrain = Callable[[int], Constraint]  # the number of prompt tokens -> one answer's constraint


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request and internal options.

    `rows` are prepared keys and values of a prompt given as token ids. At most `max_cached` of the
    prompt's first tokens are taken from and left in the prefix cache: None for no limit, 0 to
    prefill everything and store nothing. `constrain` makes a constraint for each answer; it applies
    after `process`, and forbidden tokens are not drafted. `drafters` are the presets that `draft`
    names; None for the engine's.
    """

    request: Request
    rows: PreparedRows | None = None
    max_cached: int | None = None
    constrain: Constrain | None = None
    drafters: DraftersByName | None = None


def is_batch(prompt: Any) -> bool:  # noqa: ANN401
    """Whether this is a list of prompts or requests rather than one (ids or messages)."""
    return isinstance(prompt, list | tuple) and any(
        isinstance(item, Request | PreparedRequest | str | list | tuple) for item in prompt
    )


def as_prepared(
    prompt: Prompt | Request | PreparedRequest,
    params: SamplingParams | None = None,
    *,
    draft: str | None = None,
    documents: Sequence[str | Sequence[int]] = (),
    prediction: str | Sequence[int] | None = None,
) -> PreparedRequest:
    """A request from a prompt and its options; a Request already has them."""
    if not isinstance(prompt, Request | PreparedRequest):
        request = Request(prompt, params or SamplingParams(), draft, documents, prediction)
        return PreparedRequest(request)
    if params or draft or documents or prediction:
        raise InputError("a Request has its own parameters; set them there")
    return prompt if isinstance(prompt, PreparedRequest) else PreparedRequest(prompt)
