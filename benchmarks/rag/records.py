"""The result file of a run over questions: JSON lines, a header for a session, then answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graft.bench.rag.settings import SUITE
from graft.bench.records import read_rows
from graft.errors import InputError

FORMAT = 1
Key = tuple[str, int, str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question answered one way; times in seconds, those of demonstrations apart.

    `overlap` is the share of a round's passages that an earlier round had, from the second on.
    """

    set: str
    question: int
    policy: str
    way: str
    repeat: int
    session: int
    prediction: str = ""
    golds: Sequence[str] = ()
    text: str = ""
    exact: float = 0.0
    f1: float = 0.0
    accuracy: float | None = None
    output: str = ""  # hash of the token ids
    approximate: bool = False
    guided: bool = False
    reordered: bool = False  # passages of some round
    language: str = ""
    forced: bool = False
    calls: int = 0
    retrievals: int = 0
    tokens: int = 0
    dropped_tokens: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0  # known exactly
    approximate_tokens: int = 0  # known nearly
    passages: int = 0  # in all prompts, and how many of them the document cache knew
    passage_hits: int = 0
    cache_bytes: int = 0  # it holds
    overlap: float | None = None
    retrieval_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    judging_seconds: float = 0.0
    total_seconds: float = 0.0
    demonstration_seconds: float = 0.0
    accepted_by_source: Mapping[str, int] = field(default_factory=dict)
    load_before: float = 0.0
    date: str = ""
    error: str | None = None

    @property
    def key(self) -> Key:
        """What makes a measurement unique in its file."""
        return self.set, self.question, self.policy, self.way, self.repeat


@dataclass(slots=True)
class RagResults:
    """What a file holds; of several answers with one key the last counts."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[Key, Asked] = field(default_factory=dict)

    def done(self) -> set[Key]:
        """Measurements that need not be made again."""
        return {key for key, each in self.answers.items() if each.error is None}


def read_rag_results(path: Path) -> RagResults:
    """Everything in a file; a last line cut short by an interruption is passed over."""
    results = RagResults()
    read_rows(path, lambda row: _take(results, row))
    if results.answers and not results.sessions:
        raise InputError(f"{path} has no header; give a file written by graft bench")
    return results


def is_rag(path: Path) -> bool:
    """Whether a result file is one of these."""
    try:
        with path.open(encoding="utf-8") as lines:
            return json.loads(lines.readline())["fixed"]["suite"] == SUITE
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _take(results: RagResults, row: dict[str, Any]) -> None:
    kind = row.pop("record")
    if kind == "header":
        if row["format"] != FORMAT or row["fixed"]["suite"] != SUITE:
            raise ValueError(row["format"])
        results.sessions.append(row)
    elif kind == "answer":
        asked = Asked(**row)
        results.answers[asked.key] = asked
    else:
        raise ValueError(kind)
