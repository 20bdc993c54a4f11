"""A needle in a haystack, after RULER's single needle (Hsieh et al. 2024): one sentence with a
number, at five depths of Paul Graham's essays; what is the number?

With `--context 1k,4k,16k` the essays are cut to every length and the sentence is put in afterwards,
so depths by contexts are a grid. A category is a depth. Every needle and every stretch of the
essays is used at all depths, and falls into one half.
"""

import re
import zlib
from pathlib import Path

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Gold, Planted, Prompt, chat, numbers_by_group
from graft.errors import InputError

SOURCE = Source(
    suite="needle",
    owner="RULER",
    names=("PaulGrahamEssays.json",),
    row="a text (text)",
)
MAX_TOKENS = 32
DEPTHS = (0, 25, 50, 75, 100)  # percent
TRIALS = 8  # stretches of the essays
STRETCH = 600_000  # characters: more than 128K tokens
LOST_BREAK = re.compile(r"(?<=[a-z0-9)][.?!:\]])(?=[A-Z\"'])")  # where the file lost its line ends
KEYS = ("harbour", "lantern", "orchard", "granite", "violin", "glacier", "compass", "meadow")


def read(data: Path | None) -> list[Prompt]:
    """Every stretch with its needle at every depth."""
    essays = "\n\n".join(SOURCE.lines(data, lambda row: text(row, "text")))
    stretches = _stretches(_paragraphs(essays))
    if stretches is None:
        raise InputError(f"{SOURCE.find(data)} is too short for needles; take the whole file")
    item = [(trial, depth) for trial in range(TRIALS) for depth in DEPTHS]
    numbers = numbers_by_group(trial for trial, _ in item)
    return [
        _prompt(number, stretches[trial], KEYS[trial], depth)
        for number, (trial, depth) in zip(numbers, item, strict=True)
    ]


def _paragraphs(essays: str) -> list[str]:
    """As on the page: one line each."""
    whole = re.sub(r"\n{2,}", "\n\n", LOST_BREAK.sub("\n\n", essays))
    found = (" ".join(part.split()) for part in whole.split("\n\n"))
    return [part for part in found if part]


def _stretches(paragraphs: list[str]) -> list[str] | None:
    """Texts that begin at equal distances and go on from the beginning when the end is met."""
    if len(paragraphs) < 2 * TRIALS:
        return None
    step = len(paragraphs) // TRIALS
    return [_from(paragraphs, trial * step) for trial in range(TRIALS)]


def _from(paragraphs: list[str], start: int) -> str:
    taken, size = [], 0
    for paragraph in paragraphs[start:] + paragraphs[:start]:
        taken.append(paragraph)
        size += len(paragraph)
        if size >= STRETCH:
            break
    return "\n\n".join(taken)


def _prompt(number: int, document: str, key: str, depth: int) -> Prompt:
    value = str(1_000_000 + zlib.crc32(f"{key} {depth}".encode()) % 9_000_000)
    needle = Planted(depth / 100, f"The special number of the {key} is {value}.")
    content = (
        "A special number is hidden in the text that follows. Remember it; you will be asked for "
        f"it.\n\n{document}\n\nThe text ends here. What is the special number of the {key}? "
        "Answer with the number."
    )
    gold = Gold("mention", (value,))
    return Prompt(number, f"depth {depth} %", chat(content), document, gold, planted=(needle,))
