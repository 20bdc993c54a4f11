"""Numbers of the methods that a request may set for itself."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from graft.errors import InputError
from graft.retrieval.budget import check_budget

MAX_TOP_K = 10  # the root's children in EAGLE-2's tree
MAX_BRANCHES, MAX_LENGTH = 16, 32
MAX_COPIED = MAX_BRANCHES * MAX_LENGTH
# Options that not every drafter uses, and the drafts that do
USED_BY = {
    "confidence": "a draft with a model's chain: sd, rapid, rapid-up, window or magicdec",
    "retrieved": "a draft from retrieved passages: rapid or rapid-up",
    "rasd": "a draft with RASD's branches: rasd-pld or rasd-rest",
    "casd": "a draft with CASD's copies: copy, casd or casd-prompt",
}


@dataclass(frozen=True, slots=True)
class Rasd:
    """RASD's numbers. The paper gives the `length` of a branch only; the others are ours.

    A retrieved branch stays if its first token is among the draft model's `top_k`; above
    temperature 0 these are ranked with the sampling noise, like the draft model's tree. Prompt
    lookup retrieves up to `branches`, REST as many nodes as these have. With `requery`, retrieval
    that finds nothing is repeated after the draft model's best nodes; None: in the prompt, but not
    in a datastore, as in the paper. Raises InputError for values out of range.
    """

    top_k: int = MAX_TOP_K
    branches: int = 4
    length: int = 8
    requery: bool | None = None

    def __post_init__(self) -> None:
        limits = {"top_k": MAX_TOP_K, "branches": MAX_BRANCHES, "length": MAX_LENGTH}
        _check_numbers("RASD", self, limits)

    @property
    def nodes(self) -> int:
        """Maximum of retrieved nodes."""
        return self.branches * self.length


@dataclass(frozen=True, slots=True)
class Casd:
    """CASD's numbers, by default the paper's: the longest `matches` of the last tokens are copied,
    `length` tokens each. Raises InputError for values out of range."""

    matches: int = 2
    length: int = 10

    def __post_init__(self) -> None:
        _check_numbers("CASD", self, {"matches": MAX_BRANCHES, "length": MAX_LENGTH})

    @property
    def nodes(self) -> int:
        """Maximum of copied nodes."""
        return self.matches * self.length


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """A request's own numbers for its drafter; None: the preset's.

    `max_tokens` limits the draft tokens per step. A chain ends early at a token with a probability
    below `confidence`; `retrieved` is the token budget of a short prompt. Raises InputError for
    values out of range.
    """

    max_tokens: int | None = None
    confidence: float | None = None
    retrieved: int | str | None = None
    rasd: Rasd | None = None
    casd: Casd | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InputError(f"draft_tokens must be at least 0, not {self.max_tokens}")
        if self.confidence is not None:
            check_confidence(self.confidence)
        if self.retrieved is not None:
            check_budget(self.retrieved)

    def check_used(self, used: Collection[str]) -> None:
        """Raise InputError for a number that is given and that the drafter does not use."""
        for name, drafts in USED_BY.items():
            if getattr(self, name) is not None and name not in used:
                raise InputError(f"{name} needs {drafts}")


def check_confidence(confidence: float) -> None:
    """Raise InputError unless it is a probability."""
    if not 0 <= confidence <= 1:
        raise InputError(f"confidence must be between 0 and 1, not {confidence}")


def _check_numbers(method: str, numbers: Rasd | Casd, limits: Mapping[str, int]) -> None:
    for name, limit in limits.items():
        value = getattr(numbers, name)
        if value not in range(1, limit + 1):
            raise InputError(f"{method}'s {name} must be between 1 and {limit}, not {value!r}")
