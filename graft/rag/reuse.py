"""What may be reused of prompts that were read before: the choice, as an object or by its name."""

import contextlib
from dataclasses import dataclass

from graft.errors import InputError

MODES = ("off", "exact", "cics", "keep", "blend")
SCOPES = ("question", "all")
DISK_BYTES = 4 << 30
DEMOS, REORDER, SHARE = "demos", "reorder", 0.15
NAMES = ("off", DEMOS, *MODES[1:])


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
    share: float = SHARE
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

    @property
    def name(self) -> str:
        """What `as_reuse` makes the same of again."""
        said = [DEMOS if self.head else self.mode]
        if self.approximate and self.scope == "all":
            said.append(self.scope)
        if self.mode == "blend" and self.share != SHARE:
            said.append(f"{self.share:g}")
        return "+".join([*said, *([REORDER] if self.reorder else [])])


def as_reuse(
    name: str, *, scope: str | None = None, share: float | None = None, reorder: bool = False
) -> Reuse:
    """From a mode, or `demos` (the head alone), with more joined by +: a scope, a share or
    `reorder`, such as blend+all+0.3; or with these said apart."""
    mode, *more = name.split("+")
    if mode not in NAMES:
        raise InputError(f"unknown reuse {mode!r}; choose one of {', '.join(NAMES)}")
    for each in more:
        if each == REORDER:
            reorder = True
        elif each in SCOPES:
            scope = each
        else:
            share = _share(each, name)
    made = Reuse(
        "off" if mode == DEMOS else mode,
        SCOPES[0] if scope is None else scope,
        SHARE if share is None else share,
        reorder=reorder,
        head=mode == DEMOS,
    )
    _refuse_idle(made, scope, share)
    return made


def _share(text: str, name: str) -> float:
    with contextlib.suppress(ValueError):
        return float(text)
    raise InputError(
        f"{text!r} in reuse {name!r} means nothing; add a scope ({', '.join(SCOPES)}), a share "
        f"such as 0.3, or {REORDER}"
    )


def _refuse_idle(made: Reuse, scope: str | None, share: float | None) -> None:
    """What was asked for and would change nothing."""
    if scope is not None and not made.approximate:
        raise InputError(f"reuse {made.name} has no scope; cics, keep and blend have one")
    if share is not None and made.mode != "blend":
        raise InputError(f"reuse {made.name} has no share; blend has one")
    if made.reorder and made.mode == "off":
        raise InputError(f"reuse {made.name} knows no passages to put first; use exact or cics")
