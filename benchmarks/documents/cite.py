"""Whether questions about real files find their sentence, and cite it: retrieval, not the model.

The files of `benchmarks.documents.collect` go through a server as a user sends them: read by
`POST /v1/documents/text`, together one corpus by `POST /v1/corpora`, then a chat for each question.
Two answers to each: the model's own, and the known sentence, by a structured output. A row says
whether the sentence was in the prompt (retrieved), and whether an annotation of each answer has
the right document and page (cited, quoted); page numbers are another reader's.

    python -m benchmarks.documents.cite FOLDER --out results/documents.jsonl
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.documents.collect import entries
from benchmarks.rows import rows_file
from benchmarks.serve.server import started

CORPUS = "files"
KINDS = ("retrieved", "cited", "quoted")


def find(sentence: str, text: str) -> tuple[int, int]:
    """The characters of a sentence; spaces and punctuation between its words may differ."""
    found = re.search(r"[\W_]+".join(map(re.escape, _words(sentence))), text, re.IGNORECASE)
    if found is None:
        raise SystemExit(f"not in the document, perhaps of another version: {sentence}")
    return found.span()


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text)


def covers(passages: Sequence[dict[str, Any]], name: str, span: tuple[int, int]) -> bool:
    """Whether passages of a document, which may follow each other, hold all its characters."""
    start, end = span
    for each in passages:
        if each["document"] == name and each["start"] <= start < each["end"]:
            start = each["end"]
    return start >= end


def is_cited(message: dict[str, Any], name: str, page: int | None) -> bool:
    """Whether an annotation has this document and, if it is known, this page."""
    for each in message["annotations"]:
        citation = each["url_citation"]
        first, last = citation.get("pages") or (0, 0)
        if citation["title"] == name and (page is None or first <= page <= last):
            return True
    return False


def ask(client: httpx.Client, question: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """The response to a question about the corpus."""
    body = {"messages": [{"role": "user", "content": question}], "corpora": [CORPUS],
            "temperature": 0, **fields}  # fmt: skip
    response = client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    return response.json()


def upload(client: httpx.Client, folder: Path) -> dict[str, str]:
    """Make the corpus; the text of each file."""
    documents = []
    for entry in entries():
        data = (folder / entry["name"]).read_bytes()
        read = client.post("/v1/documents/text", params={"title": entry["name"]}, content=data)
        read.raise_for_status()
        documents.append(read.json())
    made = client.post("/v1/corpora", json={"id": CORPUS, "documents": documents})
    made.raise_for_status()
    sys.stdout.write(f"{made.json()}\n")
    return {each["title"]: each["text"] for each in documents}


def measure(client: httpx.Client, entry: dict[str, Any], asked: dict[str, Any], text: str) -> dict:
    """The row of one question."""
    name, page = entry["name"], asked.get("page")
    free = ask(client, asked["question"], max_tokens=48)
    quoted = ask(client, asked["question"], max_tokens=256, guided_choice=[asked["sentence"]])
    answers = [each["choices"][0]["message"] for each in (free, quoted)]
    passages = free["documents"]["passages"]
    return {
        "document": name,
        "format": Path(name).suffix.removeprefix("."),
        "converted": "convert" in entry,
        "question": asked["question"],
        "prompt_tokens": free["usage"]["prompt_tokens"],
        "retrieved": covers(passages, name, find(asked["sentence"], text)),
        "cited": is_cited(answers[0], name, page),
        "quoted": is_cited(answers[1], name, page),
        "answer": answers[0]["content"],
        "titles": [each["url_citation"]["title"] for each in answers[0]["annotations"]],
    }


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of benchmarks.documents.collect")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--context", default="auto")
    parser.add_argument("--formats", help="ask about files of these suffixes only: pdf,epub")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder, formats = options.folder, (options.formats or "").split(",")
    options.folder = None
    arguments = [options.model, "--context", options.context, "--max-body", "64"]
    rows = []
    with rows_file("documents", options) as file, started(arguments) as served:
        client = httpx.Client(base_url=served.url, timeout=600)
        texts = upload(client, folder)
        for entry in entries():
            if options.formats and Path(entry["name"]).suffix[1:] not in formats:
                continue
            for asked in entry["questions"]:
                rows.append(measure(client, entry, asked, texts[entry["name"]]))
                file.row(rows[-1])
                flags = {kind: rows[-1][kind] for kind in KINDS}
                sys.stdout.write(f"{entry['name']}: {asked['question']} {flags}\n")
                sys.stdout.flush()
    totals = {kind: sum(row[kind] for row in rows) for kind in KINDS}
    sys.stdout.write(f"{len(rows)} questions: {totals}\n")


if __name__ == "__main__":
    main()
