"""A pool under load and under kill -9.

    python -m benchmarks.index.pool --out pool.jsonl

`load`: answers are added to a full pool with a folder, so that it drops its oldest segments, and
after each the pool is searched. `kill`: a process that adds numbered answers and reports each is
killed; what the next process finds is compared with what was reported.
"""

import argparse
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.index.measure import ANSWER, CONFIDENCE, LIMIT, made_up_text, resident, timed
from benchmarks.rows import rows_file
from graft.match.pool import PoolIndex, PoolOptions, Pools
from graft.match.pool_segments import MAX_MATCH

TEXT = 40  # tokens of a numbered answer
WAIT = 0.02  # max. seconds before a kill


def load(tokens: int) -> dict[str, Any]:
    """Fill the pool, then add a quarter more: times of additions and lookups while it evicts."""
    PoolIndex.warm_up()
    text, before = made_up_text(tokens + tokens // 4), resident()
    adds, lookups, dropped = [], [], 0
    with tempfile.TemporaryDirectory(prefix="graft-pool-") as folder:
        options = PoolOptions(folder, max_tokens=tokens)
        pools = Pools(options)
        index = pools.of("").index()
        for start in range(0, len(text) - ANSWER, ANSWER):
            held, answer = pools.tokens, text[start : start + ANSWER]
            seconds = timed(lambda answer=answer: pools.add("", answer))
            dropped += pools.tokens < held
            if start < tokens:
                continue
            adds.append(seconds)
            index.border()
            index.extend(text[start - tokens // 2 :][:MAX_MATCH])
            lookups.append(timed(lambda: index.lookup(LIMIT, CONFIDENCE)))
        memory = resident() - before
        pools.close()
        opening = timed(lambda: Pools(options))
    return {
        "tokens": tokens,
        "answers": len(adds),
        "evictions": dropped,
        "megabytes": memory / 1e6,
        "open_seconds": opening,
        **_times("add", adds),
        **_times("lookup", lookups),
    }


def kill(options: PoolOptions, times: int, seed: int = 0) -> list[dict[str, int]]:
    """A row for every kill: the last answer that was reported, the first and last one found, how
    many, and how many of the reported ones after the first are lost."""
    pools = Pools(options)
    pools.add("", numbered(0))  # compiles before the fork
    pools.close()
    rng, rows, last = np.random.default_rng(seed), [], 0
    for _ in range(times):
        reported = _reported(options, last + 1, rng.uniform(0, WAIT))
        pools = Pools(options)
        found = [int(text[0]) for text in pools.of("").texts()]
        pools.close()
        lost = len(set(range(found[0], reported + 1)) - set(found))
        rows.append({"reported": reported, "first": found[0], "last": found[-1],
                     "found": len(found), "lost": lost})  # fmt: skip
        last = found[-1]
    return rows


def numbered(number: int) -> np.ndarray:
    """An answer that begins with its number."""
    return np.arange(number, number + TEXT, dtype=np.int32)


def _reported(options: PoolOptions, first: int, seconds: float) -> int:
    """The last answer that a process reported before it was killed."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pools = Pools(options)
            for number in range(first, first + 1_000_000):
                pools.add("", numbered(number))
                os.write(there, number.to_bytes(4, "little"))
        finally:
            os._exit(1)
    os.close(there)
    with os.fdopen(here, "rb") as pipe:
        begun = pipe.read(4)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return int(np.frombuffer(begun + pipe.read(), "<u4")[-1])


def _times(name: str, seconds: list[float]) -> dict[str, float]:
    return {
        f"{name}_us": statistics.median(seconds) * 1e6,
        f"{name}_p99_us": float(np.percentile(seconds, 99)) * 1e6,
    }


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with rows_file("pool", options) as file, tempfile.TemporaryDirectory() as folder:
        file.row({"part": "load", **load(options.tokens)})
        for row in kill(PoolOptions(folder, options.tokens), options.kills):
            file.row({"part": "kill", **row})
        print(*file.results.rows, sep="\n")


if __name__ == "__main__":
    main()
