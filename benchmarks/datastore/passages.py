"""Build and search a corpus of many passages: seconds, disk, memory, and milliseconds a question.

    python -m benchmarks.datastore.passages --data FOLDER... --passages 1000000 \\
        --engine bm25s --out FILE

Texts are every `.gz`, `.json`, `.jsonl`, `.txt` and `.md` below the folders, read as plain text;
each is cut into passages of 100 words, and each passage counts once. Where these are fewer than
asked for, the rest is made of their sentences drawn at random (no passage of a real document, but
real words at real frequencies); the result says how many. Questions are the first words of passages
drawn at random.
"""

import argparse
import gzip
import json
import multiprocessing
import random
import resource
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.rows import rows_file

KINDS = (".gz", ".json", ".jsonl", ".txt", ".md")
PARTS = "part00"  # files cut into .part00, .part01, ... are joined
BLOCK = 1 << 22  # characters of a file cut at a time
SENTENCES = 4  # of a made-up passage; there are about 25 words in one
QUESTION = 8  # words
SEED = 1


def real_texts(folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Names of files and blocks of their text."""
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.suffix in KINDS or file.name.endswith(PARTS):
                yield from ((file.stem, block) for block in _blocks(file))


def _blocks(file: Path) -> Iterator[str]:
    parts = [file]
    if file.name.endswith(PARTS):
        parts = sorted(file.parent.glob(file.name.removesuffix("00") + "*"))
    data = b"".join(part.read_bytes() for part in parts)
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    text = data.decode("utf-8", errors="replace").replace("\\n", "\n")
    return (text[first : first + BLOCK] for first in range(0, len(text), BLOCK))


def write_passages(folders: Iterable[Path], count: int, file: Path) -> int:
    """`count` passages as JSON lines; how many of them are made up."""
    from graft.retrieval.by_words import WORDS, by_words

    seen: set[int] = set()
    pool: list[str] = []
    draw = random.Random(SEED)
    with file.open("w", encoding="utf-8") as out:
        for title, block in real_texts(folders):
            for text in by_words(block):
                if len(seen) < count and (name := hash(text)) not in seen:
                    seen.add(name)
                    pool += text.replace("\n", " ").split(". ")
                    out.write(json.dumps({"title": title, "text": text}) + "\n")
        for _ in range(count - len(seen)):
            text = " ".join(". ".join(draw.choices(pool, k=SENTENCES)).split()[:WORDS])
            out.write(json.dumps({"title": "", "text": text}) + "\n")
    return count - len(seen)


def build(folder: Path, file: Path, engine: str) -> dict[str, float]:
    """Build in a process of its own, and measure its peak memory."""
    from graft.rag.corpora.build import build as build_corpus
    from graft.rag.corpora.engines import engine_parts
    from graft.rag.corpora.folder import read_manifest

    began, used = time.perf_counter(), time.process_time()
    build_corpus(folder, [str(file)], engine_parts(engine), 100, lambda *_: None)
    manifest = read_manifest(folder)
    return {
        "passages": manifest.passages,
        "megabytes": round(manifest.bytes / 1e6, 1),
        "build_seconds": round(time.perf_counter() - began, 1),
        "build_cpu_seconds": round(time.process_time() - used, 1),
        "build_peak_megabytes": _peak(),
    }


def search(folder: Path, questions: int) -> dict[str, float]:
    """Open in a process of its own and ask."""
    from graft.rag.corpora.built import BuiltCorpus

    began = time.perf_counter()
    corpus = BuiltCorpus(folder)
    opened = time.perf_counter() - began
    draw = np.random.default_rng(SEED)
    queries = [_question(corpus, int(n)) for n in draw.integers(0, len(corpus), questions)]
    times, found = [], 0
    for number, question in queries:
        began = time.perf_counter()
        hits = corpus.search(question, 3)
        times.append(1000 * (time.perf_counter() - began))
        found += any(hit.passage.id == number for hit in hits)
    return {
        "open_seconds": round(opened, 2),
        "questions": questions,
        "first_ms": round(times[0], 2),
        "p50_ms": round(float(np.percentile(times, 50)), 2),
        "p99_ms": round(float(np.percentile(times, 99)), 2),
        "found": round(found / questions, 3),
        "search_peak_megabytes": _peak(),
    }


def _question(corpus: object, number: int) -> tuple[str, str]:
    passage = corpus._texts[number]
    return passage.id, " ".join(passage.text.split()[:QUESTION])


def _peak() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def apart(function: object, *arguments: object) -> dict[str, float]:
    """What a function returns that runs in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--engine", default="bm25s")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=Path("passages-corpus"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    file = options.folder.with_suffix(".jsonl")
    made_up = write_passages(options.data, options.passages, file)
    row = {
        "engine": options.engine,
        "made_up": made_up,
        **apart(build, options.folder, file, options.engine),
        **apart(search, options.folder, options.questions),
    }
    print(row)
    with rows_file("passages", options) as out:
        out.row(row)


if __name__ == "__main__":
    main()
