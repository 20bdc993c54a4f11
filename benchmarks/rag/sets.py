"""Questions of several hops with the passages they were written from.

2WikiMultiHopQA, HotpotQA (distractor setting, or as IRCoT samples it), MuSiQue and StrategyQA with
its evidence paragraphs, as their authors or MIGRES publish them. The corpus of a set is every
paragraph of its file, gold and distractors of all questions together: far smaller than Wikipedia,
and figures say so. Questions without paragraphs are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Prompt, select
from graft.errors import InputError
from graft.rag.corpus import Passage

Paragraph = tuple[str, str]  # title, text


@dataclass(frozen=True, slots=True)
class Question:
    """One to ask; `number` is its place in the file, and decides its half."""

    number: int
    text: str
    golds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """`name` is also the family of its demonstrations and thresholds."""

    name: str
    questions: tuple[Question, ...]
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    question: str
    golds: tuple[str, ...]
    paragraphs: tuple[Paragraph, ...]


def _source(name: str, owner: str, *names: str) -> Source:
    return Source(suite=f"rag ({name})", owner=owner, names=names, row=f"a question of {owner}")


SOURCES = {
    "2wiki": _source("2wiki", "2WikiMultiHopQA", "wikihop.json", "2wikimultihopqa_dev.json"),
    "hotpotqa": _source(
        "hotpotqa", "HotpotQA", "hotpot.json", "hotpot_dev_distractor_v1.json",
        "dev_subsampled.jsonl",
    ),
    "musique": _source("musique", "MuSiQue", "musique.json", "musique_ans_v1.0_dev.jsonl"),
    "strategyqa": _source("strategyqa", "StrategyQA", "strategy.json", "strategyqa_train.json"),
}  # fmt: skip
EVIDENCE = Source(
    suite="rag (strategyqa)",
    owner="StrategyQA",
    names=("strategyQA_aug_context.jsonl", "strategyqa_train_paragraphs.jsonl"),
    row="a paragraph of StrategyQA (title, contents)",
)


def find_sets(data: Path | None, wanted: tuple[str, ...] = ()) -> list[QuestionSet]:
    """The given sets, or all that are in the folder."""
    if unknown := [name for name in wanted if name not in SOURCES]:
        raise InputError(f"unknown set {unknown[0]!r}; choose from {', '.join(SOURCES)}")
    if data is None:
        raise InputError("rag needs --data: the folder with the question sets")
    if not data.is_dir():
        raise InputError(f"{data} is no folder; --data of rag is the folder with the question sets")
    there = [name for name in wanted or SOURCES if wanted or SOURCES[name].find(data).is_file()]
    if not there:
        names = ", ".join(source.names[0] for source in SOURCES.values())
        raise InputError(f"{data} has none of the question sets of rag: {names}")
    return [read_set(name, data) for name in there]


def read_set(name: str, data: Path) -> QuestionSet:
    """A set by its name."""
    rows = SOURCES[name].rows(data, _READERS[name])
    paragraphs = [each for row in rows for each in row.paragraphs]
    if name == "strategyqa":
        paragraphs = EVIDENCE.lines(data, lambda row: (text(row, "title"), text(row, "contents")))
    else:
        rows = [row for row in rows if row.paragraphs]
    unique = enumerate(dict.fromkeys(paragraphs), 1)
    return QuestionSet(
        name,
        tuple(Question(n, row.question, row.golds) for n, row in enumerate(rows, 1)),
        tuple(Passage(str(number), body, title) for number, (title, body) in unique),
    )


def _with_context(row: dict[str, Any]) -> _Row:
    """2WikiMultiHopQA and HotpotQA: `context` is a list of titles and sentences."""
    if "question_text" in row:
        return _of_ircot(row)
    found = [(title, " ".join(s.strip() for s in said)) for title, said in row.get("context") or []]
    return _Row(text(row, "question").strip(), (text(row, "answer"),), tuple(found))


def _of_ircot(row: dict[str, Any]) -> _Row:
    golds = [span for each in row["answers_objects"] for span in each["spans"]]
    return _Row(
        text(row, "question_text").strip(),
        tuple(golds),
        tuple((each["title"], text(each, "paragraph_text").strip()) for each in row["contexts"]),
    )


def _of_musique(row: dict[str, Any]) -> _Row:
    found = [(each["title"], text(each, "paragraph_text").strip()) for each in row["paragraphs"]]
    golds = (text(row, "answer"), *row.get("answer_aliases", ()))
    return _Row(text(row, "question").strip(), golds, tuple(found))


def _of_strategyqa(row: dict[str, Any]) -> _Row:
    if not isinstance(row["answer"], bool):
        raise ValueError(row["answer"])
    return _Row(text(row, "question").strip(), ("yes" if row["answer"] else "no",), ())


_READERS: dict[str, Callable[[dict[str, Any]], _Row]] = {
    "2wiki": _with_context,
    "hotpotqa": _with_context,
    "musique": _of_musique,
    "strategyqa": _of_strategyqa,
}


def choose(
    sets: list[QuestionSet], *, limit: int | None, split: str
) -> list[tuple[QuestionSet, Question]]:
    """At most `limit` questions of each set, each with its set; the sets take turns."""
    known = {(each.name, one.number): (each, one) for each in sets for one in each.questions}
    prompts = [Prompt(number, name, one.text) for (name, number), (_, one) in known.items()]
    return [
        known[prompt.category, prompt.number]
        for prompt in select(prompts, limit=limit, split=split)
    ]
