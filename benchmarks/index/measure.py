"""Time to build the indexes of `graft.match` and to look up drafts, by the length of the text.

A step is that of decoding: append the accepted tokens, then look up a draft. The datastore is built
on disk and queried with a text that it does not contain. The pool has a folder and is full: a
quarter more tokens are added than it holds, so it drops its oldest segments meanwhile.
"""

import gzip
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graft.errors import InputError
from graft.match.copy_index import CopyIndex
from graft.match.matches import TokenIndex
from graft.match.ngram import NgramCounts, NgramIndex
from graft.match.pool import MIN_TOKENS, PoolIndex, PoolOptions, Pools
from graft.match.store_build import StoreWriter, begin_store
from graft.match.store_files import Manifest, writing
from graft.match.suffix_array import open_store
from graft.match.suffix_automaton import SuffixAutomaton

VOCABULARY = 1 << 17
ACCEPTED = 4  # tokens appended in a step
STEPS = 500
LIMIT = 32
CONFIDENCE = np.linspace(0.0, 0.95, 16)
CHUNK = 1 << 16  # tokens that are added to a store at once
STORE, POOL = "store", "pool"
ANSWER = 500  # tokens that are added to a pool at once
LIVE = {"automaton": SuffixAutomaton, "ngram": NgramIndex, "copy": CopyIndex, "counts": NgramCounts}
INDEXES = (*LIVE, STORE, POOL)


def made_up_text(length: int, seed: int = 0) -> np.ndarray:
    """Zipf tokens, about a quarter of them in passages copied from further up."""
    generator = np.random.default_rng(seed)
    tokens = (generator.zipf(1.2, length) % VOCABULARY).astype(np.int32)
    at = 1000
    while at + 200 < length:
        size = int(generator.integers(5, 200))
        start = int(generator.integers(0, at - size))
        tokens[at : at + size] = tokens[start : start + size]
        at += size + int(generator.integers(50, 500))
    return tokens


def words_of(path: Path) -> np.ndarray:
    """Whitespace words, each hashed to an id; a name in .gz is unpacked."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read; --text is a text file, .gz too") from error
    return np.array([zlib.crc32(word) % VOCABULARY for word in content.split()], dtype=np.int32)


def measure(name: str, text: np.ndarray, size: int, repeats: int) -> dict[str, Any]:
    """Medians: milliseconds to build, microseconds to append and to look up in a step."""
    if name == STORE:
        return _store(text, size, repeats)
    if name == POOL:
        return _pool(text, size)
    kind = LIVE[name]
    kind.warm_up()
    builds = [timed(lambda: built(kind, text[:size])) for _ in range(repeats)]
    steps = _steps(built(kind, text[:size]), text, size)
    return {"build_ms": statistics.median(builds) * 1e3, **steps}


def built(kind: type[TokenIndex], text: np.ndarray) -> TokenIndex:
    """A new index over the text."""
    index = kind()
    index.extend(text)
    return index


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _steps(index: TokenIndex, text: np.ndarray, size: int) -> dict[str, float]:
    extends, lookups, nodes = [], [], []
    for start in range(size, size + STEPS * ACCEPTED, ACCEPTED):
        chunk = text[start : start + ACCEPTED]
        extends.append(timed(lambda chunk=chunk: index.extend(chunk)))
        lookups.append(timed(lambda: index.lookup(LIMIT, CONFIDENCE)))
        nodes.append(len(index.lookup(LIMIT, CONFIDENCE)))
    return {
        "extend_us": statistics.median(extends) * 1e6,
        "lookup_us": statistics.median(lookups) * 1e6,
        "lookup_p99_us": float(np.percentile(lookups, 99)) * 1e6,
        "nodes": statistics.mean(nodes),
    }


def _store(text: np.ndarray, size: int, repeats: int) -> dict[str, Any]:
    """Suffix arrays on disk; the queries are the text that follows theirs."""
    with tempfile.TemporaryDirectory(prefix="graft-index-") as folder:  # compiles the kernels
        _build_store(Path(folder) / STORE, text[:LIMIT])
    with tempfile.TemporaryDirectory(prefix="graft-index-") as folder:
        paths = [Path(folder) / f"{STORE}-{number}" for number in range(repeats)]
        builds = [timed(partial(_build_store, path, text[:size])) for path in paths]
        opens = [timed(partial(open_store, path, None)) for path in paths]
        steps = _steps(open_store(paths[0], None).index(), text, size)
    build, opening = statistics.median(builds), statistics.median(opens)
    return {"build_ms": build * 1e3, "open_ms": opening * 1e3, **steps}


def _pool(text: np.ndarray, size: int) -> dict[str, Any]:
    """Adding answers, with the time of the slowest percent, and looking up in the full pool."""
    PoolIndex.warm_up()
    before = resident()
    with tempfile.TemporaryDirectory(prefix="graft-index-") as folder:
        options = PoolOptions(folder, max_tokens=max(size, MIN_TOKENS))
        pools, adds = Pools(options), []
        for start in range(0, size + size // 4, ANSWER):
            answer = text[start % size :][:ANSWER]
            adds.append(timed(lambda answer=answer: pools.add("", answer)))
        memory = resident() - before
        steps = _steps(pools.of("").index(), text, size)
        pools.close()
        opening = timed(lambda: Pools(options))
    return {
        "build_ms": sum(adds) * 1e3,
        "open_ms": opening * 1e3,
        "add_us": statistics.median(adds) * 1e6,
        "add_p99_us": float(np.percentile(adds, 99)) * 1e6,
        "megabytes": memory / 1e6,
        **steps,
    }


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _build_store(folder: Path, tokens: np.ndarray) -> None:
    chunks = {str(start): tokens[start : start + CHUNK] for start in range(0, len(tokens), CHUNK)}
    with writing(folder):
        manifest = begin_store(folder, Manifest("made up", "made up", VOCABULARY))
        writer = StoreWriter(folder, manifest)
        writer.add(chunks, lambda names: [chunks[name] for name in names], lambda _: None)
        writer.merge()
        writer.finish()
