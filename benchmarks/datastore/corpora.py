"""Texts for a datastore that share nothing with the prompts it is tested on.

    python -m benchmarks.datastore.corpora --wiki enwik8.gz --chats sharegpt.jsonl.gz \\
        --field conversations \\
        --sources site-packages --answers answers.jsonl \
        --suite humaneval=FOLDER --suite squad=FOLDER --out corpora.jsonl.gz

Writes one JSON line {"text", "from"} per document: pages of a Wikipedia dump, conversations, Python
files, and answers that `answers.py` collected. A document is left out if it has any
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

from benchmarks.datastore.answers import suite_of
from benchmarks.suites.task import read_suite, select
from graft.documents.overlap import WORDS_IN_A_ROW as WORDS
from graft.documents.overlap import Overlap
from graft.documents.records import read_texts

PAGE = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)
LARGEST = 200_000  # characters of a source file; larger ones are tables
Document = tuple[str, str]  # text, where from


def prompts(suites: Iterable[tuple[str, Path]], split: str) -> Iterator[str]:
    """The texts of the prompts of a half, or of both."""
    for name, data in suites:
        for prompt in select(read_suite(name, data), limit=None, split=split):
            content = prompt.content
            yield from [content] if isinstance(content, str) else [m["content"] for m in content]


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
    known = Overlap(prompts(options.suite, options.split))
    print(f"{len(known):,} runs of {WORDS} words in the prompts of {len(options.suite)} suites")
    kept, dropped, characters = Counter(), Counter(), Counter()
    with gzip.open(options.out, "wt", compresslevel=3) as out:
        for text, source in documents(options):
            if options.limit and characters[source] >= options.limit * 1e6:
                continue
            if known.has(text):
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
    still = sum(known.has(text) for text in read_texts([options.out]))
    print(f"documents of {options.out.name} that share {WORDS} words with a prompt: {still}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("wiki", "chats", "sources", "answers"):
        parser.add_argument(f"--{name}", type=Path, nargs="*", default=[])
    parser.add_argument("--field", default="conversations", help="of the chats' records")
    parser.add_argument("--limit", type=float, help="million characters of each kind")
    parser.add_argument("--suite", type=suite_of, action="append", default=[], metavar="NAME=DATA")
    parser.add_argument("--split", default="all", help="all or report: prompts not to meet")
    parser.add_argument("--out", type=Path, required=True, help=".jsonl.gz")
    return parser.parse_args()


if __name__ == "__main__":
    main()
