"""Families of questions: demonstrations, an instruction and a maximum length.

Each is a TOML file of this package or of the user: `instruction`, `max_tokens` and a list of
`demonstrations` with `question` and `answer`, which ends with "So the answer is ...".
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from graft.errors import InputError

FAMILIES = ("general", "2wiki", "hotpotqa", "musique", "strategyqa")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Family:
    """Instruction and demonstrations before every question; `max_tokens` of an answer."""

    name: str
    instruction: str
    demonstrations: tuple[Demonstration, ...]
    max_tokens: int


def find_family(name: str) -> Family:
    """One of `FAMILIES`, or a TOML file."""
    if name in FAMILIES:
        return _family(name, packaged(f"{name}.toml"), name)
    path = Path(name)
    if path.suffix != ".toml":
        raise InputError(
            f"unknown family {name!r}; choose one of {', '.join(FAMILIES)} or name a .toml file"
        )
    try:
        return _family(path.stem, path.read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name} cannot be read as text; name a .toml file") from error


def packaged(name: str) -> str:
    """The text of a file of this package."""
    return files("graft.rag").joinpath("prompts", name).read_text(encoding="utf-8")


def _family(name: str, text: str, where: str) -> Family:
    try:
        content: dict[str, Any] = tomllib.loads(text)
        demonstrations = tuple(Demonstration(**each) for each in content.pop("demonstrations", []))
        family = Family(
            name, content.pop("instruction", ""), demonstrations, content.pop("max_tokens", 128)
        )
    except (tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise InputError(f"{where} is not a family of questions: {error}") from None
    texts = [
        family.instruction,
        *(t for each in demonstrations for t in (each.question, each.answer)),
    ]
    if content or not all(isinstance(each, str) for each in texts):
        raise InputError(
            f"{where} is not a family of questions: it has instruction, max_tokens and "
            "demonstrations, each with a question and an answer"
        )
    if not isinstance(family.max_tokens, int) or family.max_tokens < 1:
        raise InputError(f"{where}: max_tokens must be 1 or more")
    return family
