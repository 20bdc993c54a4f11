"""How long the token indexes take to build and to answer, by length of the text.

    python benchmarks/index.py --out index.jsonl
    python benchmarks/index.py --text book.txt --sizes 8192 131072

Without --text the text is made up: Zipf-distributed tokens with copied passages. A step is what
decoding does: append the tokens just accepted, then ask for a draft.
"""

import argparse
import gzip
import json
import platform
import statistics
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from graft.match.matches import TokenIndex
from graft.match.ngram import CopyIndex, NgramCounts, NgramIndex
from graft.match.suffix_automaton import SuffixAutomaton

INDEXES = (SuffixAutomaton, NgramIndex, CopyIndex, NgramCounts)
VOCABULARY = 1 << 17
CONFIDENCE = np.linspace(0.0, 0.95, 16)
ACCEPTED = 4  # tokens appended in a step
STEPS = 500
LIMIT = 32


def made_up_text(length: int, seed: int = 0) -> np.ndarray:
    """Zipf tokens, about a quarter of them in passages copied from further up."""
    rng = np.random.default_rng(seed)
    text = (rng.zipf(1.2, length) % VOCABULARY).astype(np.int32)
    at = 1000
    while at + 200 < length:
        size = int(rng.integers(5, 200))
        start = int(rng.integers(0, at - size))
        text[at : at + size] = text[start : start + size]
        at += size + int(rng.integers(50, 500))
    return text


def words_of(path: Path) -> np.ndarray:
    """Whitespace words, each hashed to an id; a name in .gz is unpacked."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    ids = [zlib.crc32(word) % VOCABULARY for word in raw.split()]
    return np.array(ids, dtype=np.int32)


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def built(kind: type[TokenIndex], text: np.ndarray) -> TokenIndex:
    """An index over the text, from nothing."""
    index = kind()
    index.extend(text)
    return index


def measure(kind: type[TokenIndex], text: np.ndarray, size: int, repeats: int) -> dict:
    """Medians: milliseconds to build, microseconds to append and to look up in a step."""
    builds = [timed(lambda: built(kind, text[:size])) for _ in range(repeats)]
    index = built(kind, text[:size])
    extends, lookups, nodes = [], [], []
    for start in range(size, size + STEPS * ACCEPTED, ACCEPTED):
        piece = text[start : start + ACCEPTED]
        extends.append(timed(lambda piece=piece: index.extend(piece)))
        lookups.append(timed(lambda: index.lookup(LIMIT, CONFIDENCE)))
        nodes.append(len(index.lookup(LIMIT, CONFIDENCE)))
    return {
        "index": kind.__name__,
        "tokens": size,
        "build_ms": statistics.median(builds) * 1e3,
        "extend_us": statistics.median(extends) * 1e6,
        "lookup_us": statistics.median(lookups) * 1e6,
        "lookup_p99_us": float(np.percentile(lookups, 99)) * 1e6,
        "nodes": statistics.mean(nodes),
    }


def print_table(rows: list[dict], source: str) -> None:
    """One row per index and length."""
    title = f"{source}: append {ACCEPTED} tokens, look up {LIMIT} nodes"
    table = Table(title=title, box=SIMPLE, pad_edge=False)
    for column in ("index", "tokens", "build ms", "append µs", "lookup µs", "p99 µs", "nodes"):
        table.add_column(column, justify="left" if column == "index" else "right", no_wrap=True)
    for row in rows:
        name, tokens, *figures = row.values()
        table.add_row(name, f"{tokens:,}", *(f"{figure:.1f}" for figure in figures))
    Console().print(table)


def commit() -> str:
    """The commit measured, or nothing outside a repository."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file, .gz too; made up if not given")
    parser.add_argument("--out", type=Path, help="append the figures here, as JSON lines")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 32768, 131072, 524288])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    needed = max(options.sizes) + STEPS * ACCEPTED
    text = words_of(options.text) if options.text else made_up_text(needed)
    source = options.text.name if options.text else "made up"
    for kind in INDEXES:
        kind.warm_up()
    sizes = [size for size in options.sizes if size + STEPS * ACCEPTED <= len(text)]
    rows = [measure(kind, text, size, options.repeats) for kind in INDEXES for size in sizes]
    print_table(rows, source)
    if options.out:
        about = {"source": source, "machine": platform.machine(), "commit": commit()}
        with options.out.open("a") as file:
            file.writelines(json.dumps(about | row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
