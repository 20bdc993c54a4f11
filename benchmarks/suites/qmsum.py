"""QMSum (Zhong et al. 2021): summaries of meetings, each the answer to a query.

A prompt holds a whole transcript, a line per turn of a speaker, and one query of the meeting, about
all of it (general) or a part (specific). The queries of a meeting fall into one half.
"""

from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Gold, Prompt, chat, numbers_by_group

SOURCE = Source(
    suite="qmsum",
    owner="QMSum",
    names=("test.jsonl", "data/ALL/jsonl/test.jsonl"),
    row="a QMSum meeting (meeting_transcripts, general_query_list, specific_query_list)",
)
Item = tuple[str, str]  # transcript, query
Answered = tuple[Item, str]


def read(data: Path | None) -> list[Prompt]:
    """The queries in the file's order, each once in its meeting."""
    answered: dict[Item, str] = {}
    for row in SOURCE.lines(data, _answered):
        for item, answer in row:
            answered.setdefault(item, answer)
    numbers = numbers_by_group(transcript for transcript, _ in answered)
    return [
        Prompt(number, "qmsum", chat(_question(*item)), item[0], _gold(answer))
        for number, (item, answer) in zip(numbers, answered.items(), strict=True)
    ]


def _gold(answer: str) -> Gold | None:
    return Gold("rouge", (answer,)) if answer else None


def _answered(row: dict[str, Any]) -> list[Answered]:
    transcript = "\n".join(filter(None, map(_turn, row["meeting_transcripts"])))
    queries = [*row["general_query_list"], *row["specific_query_list"]]
    if not transcript or not queries:
        raise ValueError("nothing said or nothing asked")
    return [
        ((transcript, text(query, "query").strip()), str(query.get("answer", "")).strip())
        for query in queries
    ]


def _turn(turn: dict[str, str]) -> str:
    """A speaker's words on one line; some turns of the set are silent."""
    said = " ".join(turn["content"].split())
    return f"{turn['speaker'].strip()}: {said}" if said else ""


def _question(transcript: str, query: str) -> str:
    return (
        "Read the transcript of a meeting. You will be asked about it afterwards.\n\n"
        f"{transcript}\n\nThe transcript ends here. Answer in a few sentences, from what was said "
        f"in this meeting alone.\n\nQuery: {query}"
    )
