"""What `--context auto` costs in quality and saves in time, against `full`.

Documents of several thousand tokens: 24 paragraphs of SQuAD, or a meeting of QMSum; five questions
about each. Both prompts are those of `graft run`. Scores are SQuAD's F1 and ROUGE-L-Sum. The prefix
cache is empty at the first question about a document; later ones of `full` find the document there.

    python -m benchmarks.documents.context squad FILE --model MODEL.gguf --documents 8 --out FILE
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graft
from benchmarks.quality.scores import f1, rouge_l_sum
from benchmarks.rows import rows_file
from graft.bench.statistics import mean
from graft.cli.options import document_tokens
from graft.documents.read import Document

PARAGRAPHS, QUESTIONS = 24, 5
MEETING_TOKENS = 10_000  # longer meetings are left out, estimated by 4 characters a token
CONTEXTS = ("full", "auto")
SHORT = "Answer with a few words from the text only."
SUITES = {"squad": (f1, 32), "qmsum": (rouge_l_sum, 128)}  # score, tokens of an answer

Task = tuple[str, list[tuple[str, str]]]  # a document, questions and answers


def squad(file: Path) -> Iterator[Task]:
    """Paragraphs in the file's order; the questions are about different ones."""
    rows = json.loads(file.read_text("utf-8"))
    by_paragraph = {row["context"]: row for row in rows}  # one question of each
    known = list(by_paragraph.values())
    for start in range(0, len(known) - PARAGRAPHS, PARAGRAPHS):
        part = known[start : start + PARAGRAPHS]
        asked = part[2 :: PARAGRAPHS // QUESTIONS][:QUESTIONS]
        questions = [(f"{each['question']} {SHORT}", each["answer"]) for each in asked]
        yield "\n\n".join(each["context"] for each in part), questions


def qmsum(file: Path) -> Iterator[Task]:
    """Meetings and questions about a part of them."""
    for line in gzip.open(file, "rt", encoding="utf-8"):
        meeting = json.loads(line)
        turns = meeting["meeting_transcripts"]
        text = "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in turns)
        asked = meeting["specific_query_list"][:QUESTIONS]
        if len(text) <= 4 * MEETING_TOKENS and len(asked) >= 2:
            yield text, [(each["query"], each["answer"]) for each in asked]


def answers(
    engine: graft.Engine, task: Task, context: str, length: int
) -> Iterator[dict[str, Any]]:
    """A row for each question about a document."""
    engine.model.prefixes.clear()
    params = graft.SamplingParams(max_tokens=length)
    documents = [Document("document", task[0])]
    for place, (question, gold) in enumerate(task[1]):
        prompt = graft.document_prompt(
            engine, question, documents, params, document_tokens=document_tokens(context)
        )
        result = engine.generate(prompt.messages, params)
        yield {
            "context": context,
            "first": place == 0,
            "whole": prompt.whole,
            "prompt_tokens": result.stats.prompt_tokens,
            "seconds": result.stats.prefill_seconds + result.stats.decode_seconds,
            "answer": result.text,
            "gold": gold,
        }


def main() -> None:
    """Print a line for each document, then the scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--out")
    options = parser.parse_args()
    score, length = SUITES[options.suite]
    engine = graft.load(options.model, head=None)
    tasks = {"squad": squad, "qmsum": qmsum}[options.suite](options.file)
    rows: list[dict[str, Any]] = []
    with rows_file("context", options) as file:
        for number, task in zip(range(options.documents), tasks, strict=False):
            for context in CONTEXTS:
                for row in answers(engine, task, context, length):
                    row |= {"document": number, "score": score(row["answer"], [row["gold"]])}
                    file.row(row)
                    rows.append(row)
            sys.stderr.write(f"document {number}\n")
    full, auto = ([row for row in rows if row["context"] == each] for each in CONTEXTS)
    for name, chosen in zip(CONTEXTS, (full, auto), strict=True):
        sys.stdout.write(f"{name}: {mean([row['score'] for row in chosen])}\n")
    changes = [b["score"] - a["score"] for a, b in zip(full, auto, strict=True)]
    sys.stdout.write(f"auto - full: {mean(changes)}\n")


if __name__ == "__main__":
    main()
