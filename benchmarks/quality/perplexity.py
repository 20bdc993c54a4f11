"""Perplexity of a model by position in a long text, at its own context and stretched.

    python -m benchmarks.quality.perplexity smollm2-135m --text BOOK.txt \\
        --context-lengths own,16k,32k

A model stretched by YaRN (`graft.load(..., context_length=32768)`) is worth using where its
perplexity keeps falling, or at least does not rise, from bucket to bucket; the first buckets show
what stretching costs short texts. Texts are joined and cut into windows as long as the longest
context; all settings read the same ones, each as far as it can. One JSON line for every window,
setting and bucket; the table has exp of the mean loss of a token.
"""

import argparse
import gzip
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import graft
from benchmarks.likelihood import log_likelihood
from benchmarks.report import Table
from benchmarks.rows import rows_file
from graft.bench.sizes import short, size
from graft.bench.table import MISSING
from graft.errors import GraftError, InputError

EDGES = (0, 2048, 4096, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072)
OWN = "own"


def main() -> int:
    """Measure, write, print; the exit code."""
    chosen = _options().parse_args()
    try:
        rows = list(measured(chosen))
        print(table(rows))
    except GraftError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def measured(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every window at every setting, written down at once."""
    settings = [_context(text) for text in chosen.context_lengths.split(",")]
    texts = [_read(path) for path in chosen.text]
    windows: list[list[int]] = []
    with rows_file("perplexity", chosen) as file:
        for context in sorted(settings, key=lambda each: -(each or 0)):  # the longest cuts the text
            engine = graft.load(
                chosen.model, context_length=context, device=chosen.device, dtype=chosen.dtype,
                head=None, draft="plain", max_batch=1, prefix_cache=0,
            )  # fmt: skip
            windows = windows or cut(engine, texts, chosen.windows)
            for number, window in enumerate(windows):
                for row in buckets(engine, window):
                    row = {**_about(engine), "window": number, **row}
                    file.row(row)
                    yield row
            del engine


def cut(engine: graft.Engine, texts: Sequence[str], count: int) -> list[list[int]]:
    """At most so many windows of the engine's context, one behind the other."""
    length = engine.context_length
    tokens = [token for text in texts for token in engine.encoder.text(text)]
    windows = [tokens[start : start + length] for start in range(0, len(tokens), length)]
    whole = [window for window in windows if len(window) == length][:count]
    if not whole:
        raise InputError(
            f"the text has {len(tokens)} tokens, but a window {length}; give a longer --text"
        )
    return whole


def buckets(engine: graft.Engine, window: list[int]) -> Iterator[dict[str, Any]]:
    """Loss and number of tokens from edge to edge, as far as the engine reads."""
    window = window[: engine.context_length]
    scores = [math.nan, *log_likelihood(engine, window[:1], window[1:])]  # by position
    for first, last in zip(EDGES, EDGES[1:], strict=False):
        inside = scores[max(first, 1) : last]
        if inside:
            yield {"first": first, "last": last, "loss": -sum(inside), "tokens": len(inside)}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line per setting, a column per bucket."""
    losses: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0])
    for row in rows:
        for place, name in enumerate(("loss", "tokens")):
            losses[_setting(row), row["first"]][place] += row[name]
    starts = sorted({start for _, start in losses})
    ends = dict(zip(EDGES, EDGES[1:], strict=False))
    lines = []
    for setting in sorted({name for name, _ in losses}):
        known = [losses.get((setting, start)) for start in starts]
        lines.append([setting, *(perplexity(each) for each in known)])
    names = ["context", *(f"{short(start)}–{short(ends[start])}" for start in starts)]
    windows = 1 + max(row["window"] for row in rows)
    title = f"{rows[0]['model']}: perplexity (windows: {windows})"
    return Table(title, names, lines).as_markdown()


def perplexity(loss: list[float] | None) -> str:
    """The perplexity of a bucket, ready to show."""
    return MISSING if loss is None else f"{math.exp(loss[0] / loss[1]):.2f}"


def _setting(row: dict[str, Any]) -> str:
    stretched = "YaRN" if row["stretched"] else "as trained"
    return f"{short(row['context_length'])}, {stretched}"


def _about(engine: graft.Engine) -> dict[str, Any]:
    return {
        "model": engine.model_name,
        "context_length": engine.context_length,
        "stretched": engine.loaded.stretched is not None,
        "dtype": engine.dtype,
        "device": engine.device,
    }


def _context(text: str) -> int | None:
    try:
        return None if text.strip() == OWN else size(text)
    except ValueError:
        raise InputError(
            f"--context-lengths takes {OWN} and numbers such as 32k, not {text!r}"
        ) from None


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InputError(f"{path} cannot be read as text; give UTF-8, gzipped or not") from error


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("model")
    options.add_argument("--text", type=Path, nargs="+", required=True, help="UTF-8, .gz or not")
    options.add_argument("--context-lengths", default=f"{OWN},32k", metavar="LIST")
    options.add_argument("--windows", type=int, default=4, help="max. windows")
    options.add_argument("--dtype", default="auto")
    options.add_argument("--device", default="auto")
    options.add_argument("--out", type=Path, default=Path("results/perplexity.jsonl"))
    return options


if __name__ == "__main__":
    sys.exit(main())
