"""Texts for a datastore that share nothing with the prompts it is tested on.

    python benchmarks/corpora.py --wiki enwik8.gz --chats sharegpt.jsonl.gz --field conversations \
        --sources site-packages --answers answers.jsonl \
        --suite humaneval=FOLDER --suite squad=FOLDER --out corpora.jsonl.gz

Writes one JSON line {"text", "from"} per document: pages of a Wikipedia dump, conversations, Python
files, and answers that `benchmarks/answers.py` collected. A document is left out if it has any
13 words in a row that a prompt of the suites has, of either half (`--split report`: of the half
that is reported on, for answers to the other); words are letters and digits in lower case. What
was kept and dropped is printed, and how many documents of the file still share anything with a
prompt: none, by construction, which a second pass confirms.
"""

import argparse
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from graft.bench.task import read_suite, select
from graft.documents.records import read_texts

WORDS = 13
WORD = re.compile(r"\w+")
PAGE = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)
MULTIPLIERS = np.random.default_rng(13).integers(1, 1 << 63, WORDS, dtype=np.uint64) * 2 + 1
LARGEST = 200_000  # characters of a source file; larger ones are tables
Document = tuple[str, str]  # text, where from


def grams(text: str) -> np.ndarray:
    """A hash for every run of WORDS words; equal runs have equal ones, in this process."""
    words = np.fromiter((hash(word) for word in WORD.findall(text.lower())), np.int64)
    if len(words) < WORDS:
        return np.empty(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(words.view(np.uint64), WORDS)
    return (windows * MULTIPLIERS).sum(1, dtype=np.uint64)


def prompt_grams(suites: Iterable[tuple[str, Path]], split: str) -> np.ndarray:
    """All runs of words of the prompts of a half, or of both, sorted."""
    found = []
    for name, data in suites:
        for prompt in select(read_suite(name, data), limit=None, split=split):
            content = prompt.content
            texts = [content] if isinstance(content, str) else [m["content"] for m in content]
            found += [grams(text) for text in texts]
    return np.unique(np.concatenate(found))


def shares_any(text: str, known: np.ndarray) -> bool:
    """Whether a text has a run of words that is known."""
    mine = grams(text)
    places = np.minimum(np.searchsorted(known, mine), len(known) - 1)
    return bool((known[places] == mine).any())


def documents(options: argparse.Namespace) -> Iterator[Document]:
    """All of them, kind by kind."""
    for path in options.wiki:
        yield from ((page, "wiki") for page in PAGE.findall(_read(path)))
    for path in options.chats:
        yield from ((text, "chats") for text in read_texts([path], options.field))
    for folder in options.sources:
        for path in sorted(folder.rglob("*.py")):
            if path.stat().st_size <= LARGEST:
                yield path.read_text(encoding="utf-8", errors="replace"), "sources"
    for path in options.answers:
        yield from ((text, "answers") for text in read_texts([path]))


def _read(path: Path) -> str:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", errors="replace") as file:
        return file.read()


def main() -> None:
    """Filter, write, check."""
    options = _options()
    known = prompt_grams(options.suite, options.split)
    print(f"{len(known):,} runs of {WORDS} words in the prompts of {len(options.suite)} suites")
    kept, dropped, characters = Counter(), Counter(), Counter()
    with gzip.open(options.out, "wt", compresslevel=3) as out:
        for text, source in documents(options):
            if options.most and characters[source] >= options.most * 1e6:
                continue
            if shares_any(text, known):
                dropped[source] += 1
                continue
            kept[source] += 1
            characters[source] += len(text)
            out.write(json.dumps({"text": text, "from": source}) + "\n")
    for source, count in kept.items():
        print(
            f"{source}: {count:,} documents, {characters[source] / 1e6:.1f} million characters; "
            f"{dropped[source]:,} dropped"
        )
    still = sum(shares_any(text, known) for text in read_texts([options.out]))
    print(f"documents of {options.out.name} that share {WORDS} words with a prompt: {still}")


def _suite(given: str) -> tuple[str, Path]:
    name, _, data = given.partition("=")
    return name, Path(data)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("wiki", "chats", "sources", "answers"):
        parser.add_argument(f"--{name}", type=Path, nargs="*", default=[])
    parser.add_argument("--field", default="conversations", help="of the chats' records")
    parser.add_argument("--most", type=float, help="million characters of each kind")
    parser.add_argument("--suite", type=_suite, action="append", default=[], metavar="NAME=DATA")
    parser.add_argument("--split", default="all", help="all or report: prompts not to meet")
    parser.add_argument("--out", type=Path, required=True, help=".jsonl.gz")
    return parser.parse_args()


if __name__ == "__main__":
    main()
