"""SQuAD (Rajpurkar et al. 2016) as CASD uses it: answers from retrieved passages.

A prompt holds three numbered passages: the question's own, at a place that varies, and the next
two of the file. A passage stands in prompts of one half only. Quoting is question_row for, as a
system that answers from documents would.
"""

import zlib
from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Gold, Prompt, chat, numbers_by_group
from graft.errors import InputError

SOURCE = Source(
    suite="squad",
    owner="SQuAD",
    names=("dev.json", "dev-v1.1.json"),
    row="a SQuAD question (context, question) or article (paragraphs with context and qas)",
)
PASSAGES = 3  # in a prompt
Pair = tuple[str, str]  # passage, question
Answers = tuple[str, ...]


def read(data: Path | None) -> list[Prompt]:
    """The questions in the file's order, each once; rows of (context, question) or articles."""
    found: dict[Pair, Answers] = {}
    for row in SOURCE.entries(data, _pairs):
        for pair, answers in row:
            found.setdefault(pair, answers)
    pairs = list(found)
    passages = list(dict.fromkeys(passage for passage, _ in pairs))
    halves = passages[0::2], passages[1::2]  # as numbers_by_group parts them
    if len(halves[1]) < PASSAGES:
        raise InputError(
            f"{SOURCE.find(data)} has {len(passages)} different passages, but squad needs "
            f"{2 * PASSAGES}: {PASSAGES} for each half; take the whole file"
        )
    places = {passage: (half, i) for half in halves for i, passage in enumerate(half)}
    numbers = numbers_by_group(passage for passage, _ in pairs)
    return [
        Prompt(
            number,
            "rag",
            chat(_question(question, _shown(question, *places[passage]))),
            gold=Gold("passage", answers) if answers else None,
        )
        for number, ((passage, question), answers) in zip(numbers, found.items(), strict=True)
    ]


def _pairs(row: dict[str, Any]) -> list[tuple[Pair, Answers]]:
    """Of a question, or of an article as SQuAD itself nests them; unanswerable ones left out."""
    if "paragraphs" not in row:
        return [((text(row, "context"), text(row, "question")), _answers(row))]
    return [
        ((text(paragraph, "context"), text(question_row, "question")), _answers(question_row))
        for paragraph in row["paragraphs"]
        for question_row in paragraph["qas"]
        if not question_row.get("is_impossible")
    ]


def _answers(question_row: dict[str, Any]) -> Answers:
    """Every different one: `answers` as SQuAD or as datasets write them, or one `answer`."""
    answers = question_row.get("answers") or [question_row.get("answer") or ""]
    answers = answers["text"] if isinstance(answers, dict) else answers
    texts = [each["text"] if isinstance(each, dict) else str(each) for each in answers]
    return tuple(dict.fromkeys(each for each in texts if each.strip()))


def _shown(question: str, half: list[str], place: int) -> list[str]:
    """The passage at `place` among those that follow it; where, the question's hash decides."""
    others = [half[(place + step) % len(half)] for step in range(1, PASSAGES)]
    right = zlib.crc32(question.encode()) % PASSAGES
    return [*others[:right], half[place], *others[right:]]


def _question(question: str, passages: list[str]) -> str:
    numbered = "\n\n".join(f"[{n}] {passage.strip()}" for n, passage in enumerate(passages, 1))
    return (
        f"{numbered}\n\nQuestion: {question.strip()}\n\nAnswer in a full sentence, from these "
        "passages alone. Then quote, word for word and with the passage's number, the sentence "
        "your answer rests on."
    )
