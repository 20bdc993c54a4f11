"""Multi-News (Fabbri et al. 2019) as LongBench (Bai et al. 2023) chose it: one summary of several
articles about the same event."""

import re
from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text, texts
from benchmarks.suites.task import Gold, Prompt, chat

SOURCE = Source(
    suite="multi_news",
    owner="LongBench",
    names=("multi_news.jsonl", "data/multi_news.jsonl"),
    row="a row of LongBench (context)",
)
LINE_BREAK = re.compile(" ?NEWLINE_CHAR ?")  # as the set writes it


def read(data: Path | None) -> list[Prompt]:
    """The rows in the file's order, each once."""
    rows: dict[str, Gold | None] = {}
    for articles, gold in SOURCE.lines(data, _articles):
        rows.setdefault(articles, gold)
    return [
        Prompt(number, "multi_news", chat(_question(articles)), articles, gold)
        for number, (articles, gold) in enumerate(rows.items(), 1)
    ]


def _articles(row: dict[str, Any]) -> tuple[str, Gold | None]:
    answers = texts(row, "answers") if row.get("answers") else None
    gold = Gold("rouge", tuple(answers)) if answers else None
    return LINE_BREAK.sub("\n", text(row, "context")).strip(), gold


def _question(articles: str) -> str:
    return (
        "Here are several news articles about one event. Read them; you will be asked for a "
        f"summary.\n\n{articles}\n\nThe articles end here. Write one summary of all of them, about "
        "a page long, with the names, numbers and dates that matter."
    )
