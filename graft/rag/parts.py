"""The parts a prompt is put together from, and what was reused of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graft.errors import InputError

HEAD, PASSAGE = "head", "passage"


class Part(NamedTuple):
    """A piece of a prompt, tokenised apart from its neighbours: "head" (instructions and
    demonstrations, the same for all questions, first), "passage", or anything else, which is
    computed always, as "question" and "text". `id` names a passage or a part of the head."""

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
