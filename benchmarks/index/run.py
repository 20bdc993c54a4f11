"""Measure the indexes that a file does not have yet."""

from dataclasses import dataclass
from pathlib import Path

from graft.bench.index.measure import ACCEPTED, INDEXES, STEPS, made_up_text, measure, words_of
from graft.bench.journal import Journal
from graft.bench.runner import Watch
from graft.bench.sizes import size as tokens_of
from graft.errors import InputError

INDEX = "index"
KEY = ("index", "tokens")
SIZES = (8192, 32768, 131072)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """What is measured; InputError for what cannot be."""

    sizes: tuple[int, ...] = SIZES
    indexes: tuple[str, ...] = INDEXES
    text: Path | None = None
    repeats: int = 5

    def __post_init__(self) -> None:
        if unknown := [name for name in self.indexes if name not in INDEXES]:
            raise InputError(f"unknown index {unknown[0]!r}; choose from {', '.join(INDEXES)}")
        if self.repeats < 1 or not self.sizes or min(self.sizes) < 1:
            raise InputError("--sizes and --repeats take whole numbers from 1 on")


def index_settings(
    sizes: str | None, indexes: str | None, text: Path | None, repeats: int | None
) -> IndexSettings:
    """As they are typed; what is left out (None) is the default."""
    try:
        lengths = None if sizes is None else tuple(tokens_of(each) for each in sizes.split(","))
    except ValueError:
        raise InputError(f"--sizes takes numbers of tokens such as 8k, not {sizes!r}") from None
    names = None if indexes is None else tuple(each.strip() for each in indexes.split(","))
    given = {"sizes": lengths, "indexes": names, "text": text, "repeats": repeats}
    return IndexSettings(**{name: value for name, value in given.items() if value is not None})


def run(settings: IndexSettings, journal: Journal, watch: Watch) -> None:
    """Every index at every size, the small ones first."""
    asked = [(name, size) for size in sorted(settings.sizes) for name in settings.indexes]
    left = [each for each in asked if not journal.done(*each)]
    watch.begin(len(asked), len(asked) - len(left))
    if not left:
        return
    needed = max(size for _, size in asked) + STEPS * ACCEPTED
    tokens = made_up_text(needed) if settings.text is None else words_of(settings.text)
    if len(tokens) < needed:
        raise InputError(
            f"{settings.text} has {len(tokens)} words, but the largest of --sizes needs {needed}"
        )
    name = "made up" if settings.text is None else settings.text.name
    journal.begin({"text": name, "repeats": settings.repeats})
    for index, size in left:
        watch.turn(f"{index}, {size:,} tokens")
        figures = measure(index, tokens, size, settings.repeats)
        journal.add({"index": index, "tokens": size, **figures})
        watch.advance()
