"""Whole documents or their best passages: python -m benchmarks.rag.context MODEL --tokens 1000,2000

A document joins PASSAGES passages of SQuAD; its questions are those of the first QUESTIONED of
them. For every limit of document tokens (0: none) the table has the share of prompts with an
answer of the question (recall) and, with --answers, F1 of the model's answers and seconds of
prefill.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import graft
from benchmarks.quality.scores import f1
from graft.documents import Document

PASSAGES, QUESTIONED = 40, 4
ASK = "Answer with the shortest phrase from the document, nothing else. "


def documents(data: Path, count: int) -> list[tuple[Document, list[tuple[str, list[str]]]]]:
    """Documents, each with its questions and their answers."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for row in json.loads(data.read_text(encoding="utf-8")):
        answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        found.setdefault(row["context"], []).append((row["question"], answers))
    passages = list(found)
    random.Random(0).shuffle(passages)
    parts = [passages[at : at + PASSAGES] for at in range(0, len(passages), PASSAGES)]
    made = []
    for number, some in enumerate(parts):
        asked = [found[passage][0] for passage in some[:QUESTIONED]]
        shown = random.Random(number).sample(some, len(some))
        made.append((Document("document", "\n\n".join(shown)), asked))
    return made[:count]


def main() -> None:
    """Measure and print one JSON line per limit."""
    options = argparse.ArgumentParser()
    options.add_argument("model")
    options.add_argument("--data", type=Path, required=True, help="SQuAD's dev.json")
    options.add_argument("--tokens", default="0,512,1024,2048,4096")
    options.add_argument("--documents", type=int, default=25)
    options.add_argument("--answers", action="store_true")
    chosen = options.parse_args()
    engine = graft.load(chosen.model)
    params = graft.SamplingParams(max_tokens=24)
    for limit in map(int, chosen.tokens.split(",")):
        hits, scores, sizes, seconds = [], [], [], []
        for document, questions in documents(chosen.data, chosen.documents):
            for question, answers in questions:
                prompt = graft.document_prompt(
                    engine, ASK + question, [document], params, document_tokens=limit or None
                )
                text = prompt.messages[-1]["content"]
                hits.append(any(answer in text for answer in answers))
                if chosen.answers:
                    began = time.perf_counter()
                    result = engine.generate(prompt.messages, params)
                    seconds.append(time.perf_counter() - began)
                    scores.append(f1(result.text, answers))
                    sizes.append(result.stats.prompt_tokens)
        row = {"tokens": limit, "questions": len(hits), "recall": sum(hits) / len(hits)}
        if scores:
            row["f1"], row["f1_by_question"] = sum(scores) / len(scores), scores
            row["prompt_tokens"] = sum(sizes) / len(sizes)
            row["seconds"] = sum(seconds) / len(seconds)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
