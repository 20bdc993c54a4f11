"""How long datastores take to build, open and answer, by their size.

    python -m benchmarks.datastore.build FILES --out datastore.jsonl

FILES are what `graft index build` takes. One in a hundred pieces of text is held out; queries are
16 tokens from anywhere in those. Each store is built by a process of its own, whose peak memory is
noted, and what of it was there before. Each size is built twice, the same texts each time: merged
into as few shards as fit, and left in four, as after additions, for a search visits every shard. A
query is timed as decoding makes it: search, count and choose up to 48 nodes, from Python, after as
many other queries have warmed the caches; and the same by REST's choice, up to 64 nodes. Seconds of
the processor are given beside those of the clock, for machines that have other work too.
"""

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import rows_file
from graft.documents.records import read_texts
from graft.draft.copies.calibration import STORE_PRIOR, Calibration
from graft.match.matches import TokenIndex
from graft.match.rest import CHOICES, RestIndex
from graft.match.store_build import MAX_TOKENS, StoreWriter, begin_store
from graft.match.store_files import Manifest, read_manifest, writing
from graft.match.suffix_array import MAX_MATCH, open_store
from graft.models.checkpoints.pretrained import DEFAULT_MODEL
from graft.models.checkpoints.tokenizer import (
    batch_encoder,
    read_tokenizer,
    tokenizer_fingerprint,
    vocabulary_size,
)

MILLION = 1_000_000
PIECE = 1 << 18  # characters
HELD_OUT = 100  # one piece in so many
SHARDS = 4  # of a store that is not merged
LIMIT = 48
KILOBYTE = 1024


@dataclass(frozen=True)
class Work:
    """One store to build."""

    files: list[str]
    fields: dict[str, str]
    model: str
    tokens: int
    folder: Path
    merged: bool = True


def main() -> None:
    """Build, measure, print, write."""
    options = _options()
    work = dict(files=options.files, fields=dict(options.field), model=options.model)
    queries = _queries(Work(**work, tokens=0, folder=Path()), options.queries)
    with rows_file("datastore", options) as file:
        for size, merged in product(options.sizes, (True, False)):
            folder = Path(tempfile.mkdtemp(prefix="graft-store-", dir=options.folder))
            store = Work(**work, tokens=int(size * MILLION), folder=folder, merged=merged)
            try:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    built = pool.apply(build, (store,))
                row = {**built, **measure(folder, queries), "load": os.getloadavg()[0]}
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            print(row, flush=True)
            file.row(row)


def build(work: Work) -> dict[str, Any]:
    """Build a store of the first so many tokens; in a process of its own."""
    tokenizer = read_tokenizer(work.model)
    manifest = Manifest(tokenizer_fingerprint(tokenizer), work.model, vocabulary_size(tokenizer))
    encode, left = batch_encoder(tokenizer), work.tokens

    def some(texts: list[str]) -> list[np.ndarray]:
        nonlocal left
        arrays = []
        for array in encode(texts):
            arrays.append(array[:left])
            left -= len(arrays[-1])
        return arrays

    def until_enough() -> Iterator[str]:
        for text in pieces(work, held_out=False):
            if left <= 0:
                return
            yield text

    most = MAX_TOKENS if work.merged else -(-work.tokens // SHARDS)
    libraries = _peak()
    started, worked = time.perf_counter(), time.process_time()
    with writing(work.folder):
        begun = begin_store(work.folder, manifest)
        writer = StoreWriter(work.folder, begun, max_tokens=most)
        writer.add(until_enough(), some, lambda _: None)
        read = time.perf_counter()
        if work.merged:
            writer.merge()
        writer.finish()
    ended = time.perf_counter()
    return {
        "merged": work.merged,
        "tokens": writer.manifest.tokens,
        "documents": writer.manifest.documents,
        "shards": len(writer.manifest.shards),
        "build_seconds": ended - started,
        "build_cpu_seconds": time.process_time() - worked,
        "merge_seconds": ended - read,
        "peak_bytes": _peak(),
        "libraries_bytes": libraries,
        "disk_bytes": writer.manifest.bytes,
    }


def measure(folder: Path, queries: np.ndarray) -> dict[str, Any]:
    """Open and ask the store."""
    fingerprint, opening = read_manifest(folder).tokenizer, []
    for _ in range(5):
        started = time.perf_counter()
        store = open_store(folder, fingerprint)
        opening.append(time.perf_counter() - started)
    found = [store.search(query) for query in queries]
    lengths = np.array([hits.length for hits in found])
    return {
        "open_ms": float(np.median(opening)) * 1e3,
        **ask(store.index(), queries, LIMIT, "query"),
        **ask(RestIndex(store), queries, CHOICES, "rest"),
        "match_length_mean": float(lengths.mean()),
        "no_match": float((lengths == 0).mean()),
        "hits_p50": float(np.median([hits.count for hits in found])),
        "queries": len(queries) - len(queries) // 2,
    }


def ask(index: TokenIndex, queries: np.ndarray, limit: int, name: str) -> dict[str, float]:
    """Microseconds that a query takes, the first half of them not counted."""
    trust, times, worked = Calibration(STORE_PRIOR).rates, [], []
    for query in queries:
        index.extend(query)
        started, ran = time.perf_counter(), time.thread_time()
        index.lookup(limit, trust)
        worked.append(time.thread_time() - ran)
        times.append(time.perf_counter() - started)
    warm, cpu = (np.array(each[len(each) // 2 :]) * 1e6 for each in (times, worked))
    return {
        f"{name}_us_p50": float(np.percentile(warm, 50)),
        f"{name}_us_p99": float(np.percentile(warm, 99)),
        f"{name}_us_mean": float(warm.mean()),
        f"{name}_cpu_us_p50": float(np.percentile(cpu, 50)),
        f"{name}_cpu_us_p99": float(np.percentile(cpu, 99)),
    }


def pieces(work: Work, *, held_out: bool) -> Iterator[str]:
    """The files' text in pieces: one in a hundred, or all the others."""
    number = 0
    for file in work.files:
        for text in read_texts([file], work.fields.get(file, "text")):
            for start in range(0, len(text), PIECE):
                number += 1
                if (number % HELD_OUT == 0) == held_out:
                    yield text[start : start + PIECE]


def _queries(work: Work, count: int) -> np.ndarray:
    """[2 count, MAX_MATCH] ids from anywhere in the held-out pieces."""
    encode = batch_encoder(read_tokenizer(work.model))
    held = np.concatenate(encode(list(pieces(work, held_out=True)))).astype(np.int32)
    starts = np.random.default_rng(0).integers(0, len(held) - MAX_MATCH, 2 * count)
    return held[starts[:, None] + np.arange(MAX_MATCH)]


def _peak() -> int:
    """Most bytes this process held; getrusage would count those of the one that started it."""
    [line] = [each for each in Path("/proc/self/status").open() if each.startswith("VmHWM")]
    return int(line.split()[1]) * KILOBYTE


def _field(given: str) -> tuple[str, str]:
    file, _, name = given.rpartition("=")
    return file, name


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("files", nargs="+")
    options.add_argument("--sizes", type=float, nargs="+", default=[1, 5, 20, 50], help="millions")
    options.add_argument(
        "--field", type=_field, action="append", default=[], help="FILE=FIELD of its records"
    )
    options.add_argument("--model", default=DEFAULT_MODEL)
    options.add_argument("--queries", type=int, default=2000)
    options.add_argument("--folder", type=Path, help="where stores are built")
    options.add_argument("--out", type=Path)
    return options.parse_args()


if __name__ == "__main__":
    main()
