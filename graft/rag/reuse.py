"""What may be reused of a prompt that is put together from parts, and what was."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graft.errors import InputError

MODES = ("off", "exact", "cics", "keep", "blend")
SCOPES = ("question", "all")
HEAD, PASSAGE = "head", "passage"


@dataclass(frozen=True, slots=True)
class Reuse:
    """How keys and values of earlier prompts are used.

    `off`: not at all (with `head` the fixed head is: demonstrations cached, nothing else).
    `exact`: where everything before is the same too, so that nothing changes.
    `cics`: passages wherever they stand, keys turned to the new positions (IDR2, section 3.2).
    `keep`: the same with keys as they were; what follows stands behind the last position used.
    `blend`: cics, then the `share` of tokens whose first layers differ most is computed anew
    (CacheBlend).

    The last three are approximate. `scope` says whose rows they use: of earlier prompts of the
    same question, as they were computed there; or of all questions, each passage computed after
    the head alone, so that answers do not depend on what was asked before. `reorder` changes the
    prompt: passages known already come first.
    """

    mode: str = "exact"
    scope: str = "question"
    share: float = 0.15
    reorder: bool = False
    head: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"unknown reuse {self.mode!r}; choose one of {', '.join(MODES)}")
        if self.scope not in SCOPES:
            raise InputError(f"unknown scope {self.scope!r}; choose one of {', '.join(SCOPES)}")
        if not 0 <= self.share <= 1:
            raise InputError(f"a share of {self.share} tokens cannot be; choose one from 0 to 1")
        if self.head and self.mode != "off":
            raise InputError(f"reuse {self.mode} has the head in any case; head=True is for off")

    @property
    def approximate(self) -> bool:
        """Whether it may change answers."""
        return self.mode in ("cics", "keep", "blend")

    @property
    def blended(self) -> float:
        """The share of reused tokens that is computed anew."""
        return self.share if self.mode == "blend" else 0.0


class Part(NamedTuple):
    """A piece of a prompt, tokenised apart from its neighbours: "head" (instructions and
    demonstrations, the same for all questions, first), "passage", or anything else, which is
    computed always, as "question" and "text"."""

    kind: str
    tokens: Sequence[int]
    id: str = ""


@dataclass(frozen=True, slots=True)
class PartReuse:
    """What is reused of a part: rows that are exactly the model's own, or others; the rest of its
    tokens is computed. Blending computes a share of the approximate ones anew."""

    kind: str
    id: str
    tokens: int
    exact: int = 0
    approximate: int = 0

    @property
    def computed(self) -> int:
        """Tokens that have no rows yet."""
        return self.tokens - self.exact - self.approximate


def _checked(part: tuple) -> Part:
    try:
        kind, tokens, *rest = part
        return Part(kind, np.asarray(tokens, np.int32).tolist(), *rest)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"a part is (kind, token ids, id), not {str(part)[:60]!r}; tokenise its text first"
        ) from error


def checked(parts: Sequence[tuple]) -> list[Part]:
    """The parts that have tokens, after everything that speaks against them."""
    known = [part for part in map(_checked, parts) if len(part.tokens)]
    if not known:
        raise InputError("a prompt needs at least one part with tokens")
    kinds = [part.kind for part in known]
    if HEAD in kinds[kinds.count(HEAD) :]:
        raise InputError("a prompt's head comes first; other parts may follow it only")
    return known
