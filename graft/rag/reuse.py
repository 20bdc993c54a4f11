"""What a round may take over from what was read before.

A round's prompt comes in parts. Whoever reuses says in which order and with which options they go
to the engine; after the call the session tells how many tokens of each kind were not read again.

`off` reads every prompt anew and leaves nothing behind; `demos` shares the demonstrations alone,
which every prompt begins with; `exact` shares whatever true prefix the engine's cache holds. None
of them changes a token. Approximate ways (a passage's rows used at another place) plug in as
another `Reuse`, and say so.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from graft.decode.sequence import Result
from graft.errors import InputError
from graft.rag.prompt import Part

REUSES = {
    "off": "every prompt is read anew",
    "demos": "the demonstrations are read once",
    "exact": "whatever prefix was read before, token for token",
}


@dataclass(frozen=True, slots=True)
class Handed:
    """What goes to the engine: the parts in their order, and options of the `Request`.

    `rows` says of each part how many tokens the reuse itself has put in place; None leaves it to
    the prefix cache, and what that found is counted after the call.
    """

    parts: Sequence[Part]
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[int] | None = None

    @property
    def tokens(self) -> list[int]:
        """The prompt."""
        return [token for part in self.parts for token in part.tokens]


class Reuse(Protocol):
    """A way to reuse. `approximate`: answers may differ from those of `off`. `keeps_head`: it pays
    to read the demonstrations before the first question."""

    name: str
    approximate: bool
    keeps_head: bool

    def begin(self) -> None:
        """A new question."""

    def hand(self, parts: Sequence[Part]) -> Handed:
        """What to give the engine for these parts."""

    def took(self, handed: Handed, result: Result) -> None:
        """A call was made with what was handed."""


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Through the engine's own cache of prefixes: exact."""

    name: str
    approximate: bool = False

    @property
    def keeps_head(self) -> bool:
        """See Reuse."""
        return self.name != "off"

    def begin(self) -> None:
        """See Reuse; questions share nothing that could be wrong."""

    def hand(self, parts: Sequence[Part]) -> Handed:
        """See Reuse."""
        if self.name == "exact":
            return Handed(parts)
        head = len(parts[0].tokens) if self.keeps_head else 0
        return Handed(parts, {"most_cached": head})

    def took(self, handed: Handed, result: Result) -> None:
        """See Reuse; the engine has kept what it may."""


def check_reuse(name: str) -> None:
    """Refuse a way that there is not."""
    if name not in REUSES:
        raise InputError(f"unknown reuse {name!r}; choose one of {', '.join(REUSES)}")


def make_reuse(name: str) -> Reuse:
    """One of `REUSES`."""
    check_reuse(name)
    return PrefixReuse(name)


def reused(handed: Handed, cached: int) -> dict[str, int]:
    """Tokens that were not read again, by kind of part; the demonstrations are "demonstrations".

    `cached` is what the prefix cache had of the prompt's beginning.
    """
    counts: Counter[str] = Counter()
    for place, part in enumerate(handed.parts):
        own = handed.rows[place] if handed.rows else 0
        found = min(max(cached, 0), len(part.tokens))
        cached -= len(part.tokens)
        kind = part.id if part.kind == "head" else part.kind
        counts[kind] += max(own, found)
    return {kind: count for kind, count in counts.items() if count}
