"""LongBench v2 (Bai et al. 2024): four-way multiple choice about long documents.

Every question has two forms: `direct` wants the letter in a fixed sentence, `cot`
a chain of thought first, then a follow-up for the letter without the document. A category is a
length and a form, such as `short-cot`; the authors' answers have at most 128 and 1024 tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Gold, Prompt, chat, numbers_by_group

SOURCE = Source(
    suite="longbench_v2",
    owner="LongBench v2",
    names=("data.json", "short.0.jsonl"),
    row="a LongBench v2 question (context, question, four choices, answer)",
)
ENDINGS = (".jsonl", ".jsonl.gz")
LETTERS = ("A", "B", "C", "D")
FORMS = ("direct", "cot")
VERDICT = 'Give it in this form: "The correct answer is (insert letter here)".'


@dataclass(frozen=True, slots=True)
class Item:
    """One question of the set."""

    length: str
    document: str
    question: str
    choices: tuple[str, ...]
    answer: str


def read(data: Path | None) -> list[Prompt]:
    """The questions of data.json, of all JSON lines in the folder, or of one file, each once in
    either form."""
    item = [(each, form) for each in dict.fromkeys(_items(data)) for form in FORMS]
    numbers = numbers_by_group(each.document for each, _ in item)
    return [_prompt(number, *each) for number, each in zip(numbers, item, strict=True)]


def _items(data: Path | None) -> Iterator[Item]:
    found = SOURCE.find(data)
    files = [found]
    if data is not None and data.is_dir() and found.name.partition(".")[0] != "data":
        files = [each for each in sorted(data.iterdir()) if each.name.endswith(ENDINGS)] or [found]
    for file in files:
        lines = file.name.endswith(ENDINGS)
        yield from (SOURCE.lines if lines else SOURCE.entries)(file, _question_of)


def _question_of(row: dict[str, Any]) -> Item:
    """`choices` by letter, or a field for each of them as in the authors' file."""
    choices = row.get("choices") or {letter: row[f"choice_{letter}"] for letter in LETTERS}
    answer = text(row, "answer").strip()
    if answer not in LETTERS:
        raise ValueError(answer)
    return Item(
        length=str(row.get("length", "short")),
        document=text(row, "context").strip(),
        question=text(row, "question").strip(),
        choices=tuple(text(choices, letter).strip() for letter in LETTERS),
        answer=answer,
    )


def _prompt(number: int, item: Item, form: str) -> Prompt:
    options = "\n".join(
        f"({letter}) {choice}" for letter, choice in zip(LETTERS, item.choices, strict=True)
    )
    question = f"Question: {item.question}\n\nChoices:\n{options}"
    shown = f"Read this text; a question about it follows.\n\n<text>\n{item.document}\n</text>"
    if form == "direct":
        content, follow_up = f"{shown}\n\n{question}\n\nAnswer the question. {VERDICT}", ""
    else:
        content = f"{shown}\n\n{question}\n\nLet's think step by step."
        follow_up = (
            f"A question about a long text was thought through; the text itself is left out here."
            f"\n\n{question}\n\nThoughts: {{answer}}\n\nWhich choice do these thoughts lead to? "
            f"{VERDICT}"
        )
    gold = Gold("choice", (item.answer,))
    category = f"{item.length}-{form}"
    return Prompt(number, category, chat(content), item.document, gold, follow_up)
