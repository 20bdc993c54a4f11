"""Prompts of a suite, and the selection of those that a run measures."""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from pathlib import Path

from benchmarks import suites
from benchmarks.settings import SPLITS
from benchmarks.suites import suite_names
from graft.errors import InputError


@dataclass(frozen=True, slots=True)
class Gold:
    """Reference answers; `kind` is the rule of scoring (`quality/scores.py`)."""

    kind: str
    references: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Planted:
    """A paragraph inserted into a document after it is cut, at that share of it (0 to 1)."""

    share: float
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task of a suite. `content` is text, taken as it is, or chat messages.

    `number` is unique in the suite; it seeds the draws, and its parity decides the split.
    `document` is the part of the content that may be shortened; `planted` paragraphs are inserted
    after that, so that no cut removes them. `follow_up` asks for the result of a long answer, which
    replaces {answer} in it; `gold` is then compared with the reply. `turns` are what the user says
    after each answer, where a command continues the conversation.
    """

    number: int
    category: str
    content: str | list[dict[str, str]]
    document: str = field(default="", repr=False)  # part of content
    gold: Gold | None = field(default=None, repr=False)  # not part of the prompt
    follow_up: str = field(default="", repr=False)
    planted: tuple[Planted, ...] = field(default=(), repr=False)
    turns: tuple[str, ...] = field(default=(), repr=False)


def chat(text: str) -> list[dict[str, str]]:
    """A prompt's content as one message of a user."""
    return [{"role": "user", "content": text}]


def numbers_by_group(groups: Iterable[Hashable]) -> list[int]:
    """Numbers such that all prompts of a group are in the same half; groups alternate."""
    odd: dict[Hashable, bool] = {}
    free = {True: count(1, 2), False: count(2, 2)}
    return [next(free[odd.setdefault(group, len(odd) % 2 == 0)]) for group in groups]


def read_suite(name: str, data: Path | None) -> list[Prompt]:
    """All prompts of a suite; `data` is the folder or file its questions are read from."""
    if name not in suite_names():
        raise InputError(f"unknown suite {name!r}; choose one of {', '.join(suite_names())}")
    return import_module(f"{suites.__name__}.{name}").read(data)


def select(
    prompts: list[Prompt], *, limit: int | None, split: str, categories: tuple[str, ...] = ()
) -> list[Prompt]:
    """The chosen half of the chosen categories, at most `limit` of each, spread evenly over it.

    Categories take turns, so that a run stopped early still holds all of them.
    """
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    if unknown := [name for name in categories if name not in known]:
        raise InputError(f"unknown category {unknown[0]!r}; choose from {', '.join(known)}")
    order = categories or known
    half = [p for p in prompts if p.category in order and _in_split(p, split)]
    if not half:
        raise InputError("no prompts are left to measure; choose another --split or --category")
    return limited(sorted(half, key=lambda prompt: order.index(prompt.category)), limit)


def limited(
    prompts: list[Prompt], limit: int | None, preferred: Collection[int] = ()
) -> list[Prompt]:
    """At most `limit` of each category, by turns, those whose numbers are `preferred` first."""
    chosen: list[tuple[int, Prompt]] = []
    for category in dict.fromkeys(prompt.category for prompt in prompts):
        mine = [prompt for prompt in prompts if prompt.category == category]
        taken = [prompt for prompt in mine if prompt.number in preferred][:limit]
        others = [prompt for prompt in mine if prompt.number not in preferred]
        left = None if limit is None else limit - len(taken)
        chosen += enumerate([*taken, *_spread(others, left)])
    return [prompt for _, prompt in sorted(chosen, key=lambda place: place[0])]


def _in_split(prompt: Prompt, split: str) -> bool:
    """Even numbers are for tuning, odd ones for reporting."""
    return split == "all" or (prompt.number % 2 == 0) == (split == "tune")


def _spread(prompts: list[Prompt], limit: int | None) -> list[Prompt]:
    """`limit` of them at equal distances: the first ones are often alike."""
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[i * len(prompts) // limit] for i in range(limit)]
