"""Modes of KV cache reuse between prompts, as an object or by name."""

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
    """How keys and values of earlier prompts are reused.

    `off`: not at all (with `head` only the fixed head is cached: the demonstrations).
    `exact`: common prefixes, so that the output does not change.
    `cics`: passages at any position, keys rotated to it (IDR2, section 3.2).
    `keep`: the same with unrotated keys; later tokens follow the largest position used.
    `blend`: cics, then the `share` of tokens whose first layers differ most is recomputed
    (CacheBlend).

    The last three are approximate. With scope "question" they reuse rows of earlier prompts of the
    same question, as computed there; with "all" those of every question, each passage computed
    after the head only, so that answers do not depend on earlier questions. `reorder` puts cached
    passages first, which changes the prompt.
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
            raise InputError(f"the share is {self.share}; choose one from 0 to 1")
        if self.head and self.mode != "off":
            raise InputError(f"reuse {self.mode} always includes the head; head=True is for off")

    @property
    def approximate(self) -> bool:
        """Whether reuse may change answers."""
        return self.mode in ("cics", "keep", "blend")

    @property
    def caches_head(self) -> bool:
        """Whether the demonstrations are cached, so that they are prefilled before a question."""
        return self.head or self.mode != "off"

    @property
    def blended(self) -> float:
        """The share of reused tokens that is recomputed."""
        return self.share if self.mode == "blend" else 0.0

    @property
    def name(self) -> str:
        """The name from which `as_reuse` makes an equal object."""
        words = [DEMOS if self.head else self.mode]
        if self.approximate and self.scope == "all":
            words.append(self.scope)
        if self.mode == "blend" and self.share != SHARE:
            words.append(f"{self.share:g}")
        return "+".join([*words, *([REORDER] if self.reorder else [])])


def as_reuse(
    name: str, *, scope: str | None = None, share: float | None = None, reorder: bool = False
) -> Reuse:
    """The reuse of a name: a mode or `demos` (the head only), with a scope, a share and `reorder`
    joined by +, such as blend+all+0.3, or given as arguments."""
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
    _check_unused(made, scope, share)
    return made


def _share(text: str, name: str) -> float:
    with contextlib.suppress(ValueError):
        return float(text)
    raise InputError(
        f"{text!r} in reuse {name!r} is unknown; add a scope ({', '.join(SCOPES)}), a share "
        f"such as 0.3, or {REORDER}"
    )


def _check_unused(made: Reuse, scope: str | None, share: float | None) -> None:
    """Raise InputError for options without effect."""
    if scope is not None and not made.approximate:
        raise InputError(f"reuse {made.name} has no scope; cics, keep and blend have one")
    if share is not None and made.mode != "blend":
        raise InputError(f"reuse {made.name} has no share; blend has one")
    if made.reorder and made.mode == "off":
        raise InputError(f"reuse {made.name} caches no passages to reorder; use exact or cics")
