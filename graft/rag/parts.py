"""The parts of a prompt, and the cached tokens of each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graft.errors import InputError

HEAD, PASSAGE = "head", "passage"


class Part(NamedTuple):
    """A piece of a prompt, tokenized separately: "head" (instructions and demonstrations, the same
    for all questions, first), "passage", or anything else, such as "question" and "text", which is
    always computed. `id` names a passage or a part of the head."""

    kind: str
    tokens: Sequence[int]
    id: str = ""


@dataclass(frozen=True, slots=True)
class PartReuse:
    """Cached tokens of a part, with exact or approximate rows; the others are computed. Blending
    recomputes a share of the approximate ones."""

    kind: str
    id: str
    tokens: int
    exact: int = 0
    approximate: int = 0

    @property
    def computed(self) -> int:
        """Tokens without cached rows."""
        return self.tokens - self.exact - self.approximate


def reused(parts: Sequence[PartReuse], cached: int) -> dict[str, int]:
    """Cached tokens with exact rows by kind of part; parts of the head by their id.

    `cached` is their total: those of the parts, and what the prefix cache has of the others.
    """
    in_prefix = max(0, cached - sum(part.exact for part in parts))  # from the first part on
    counts: Counter[str] = Counter()
    for part in parts:
        more = min(in_prefix, part.tokens - part.exact)
        in_prefix -= more
        counts[part.id if part.kind == HEAD else part.kind] += part.exact + more
    return {kind: count for kind, count in counts.items() if count}


def _checked(part: tuple) -> Part:
    try:
        kind, tokens, *rest = part
        return Part(kind, np.asarray(tokens, np.int32).tolist(), *rest)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"a part is (kind, token ids, id), not {str(part)[:60]!r}; tokenize its text first"
        ) from error


def checked(parts: Sequence[tuple]) -> list[Part]:
    """The parts with tokens; InputError if they do not make a prompt."""
    known = [part for part in map(_checked, parts) if len(part.tokens)]
    if not known:
        raise InputError("a prompt needs at least one part with tokens")
    kinds = [part.kind for part in known]
    if HEAD in kinds[kinds.count(HEAD) :]:
        raise InputError("a prompt's head must come first")
    return known
