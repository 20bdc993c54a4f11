"""`graft index passages`: corpora of passages for `graft ask`, on disk or in Milvus."""

import json as json_module
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graft.cli.failures import fails_in_one_line
from graft.cli.show import Spinner
from graft.errors import InputError

if TYPE_CHECKING:
    from graft.rag.corpora.engines import About

MEGABYTE = 1e6
SHOWN = 200  # characters of a passage in the output of --query
MILVUS = "milvus"


@fails_in_one_line
def passages(  # noqa: PLR0913 (one parameter is one option)
    corpus: Annotated[
        str,
        typer.Argument(metavar="CORPUS", help="A folder, milvus:FILE.db#NAME or milvus:URI#NAME."),
    ],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES...",
            help="Text, Markdown, HTML, PDF; JSON arrays and lines, TSV, parquet of passages "
            "(text, title, id); also gzipped: files, folders or quoted patterns.",
        ),
    ] = None,
    *,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Search engine: bm25s (the default), static (word vectors), dense or dense:NAME "
            "(a sentence encoder), hybrid (bm25s+static), or several joined by +; milvus: a file "
            "of Milvus Lite.",
        ),
    ] = None,
    words: Annotated[
        int | None, typer.Option(min=1, help="Maximum words of a passage; 100 by default.")
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add to the corpus; passages it already has are skipped.")
    ] = False,
    query: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Search the corpus instead.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum passages of --query.")] = 3,
    info: Annotated[bool, typer.Option("--info", help="Describe the corpus.")] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="List the corpora in a folder or in Milvus.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Build a corpus of passages for `graft ask --corpus`; an interruption changes nothing.

    Example: graft index passages corpus docs
    """
    place = _place(corpus, engine)
    if sum((bool(files), query is not None, info, listed)) != 1:
        raise InputError("name FILES to build the corpus from, or one of --query, --info, --list")
    if not files and (add or words is not None or engine is not None):
        raise InputError("--add, --engine and --words are for building: name FILES")
    if query is not None:
        _show_found(place, query, limit, json=json)
    elif listed:
        _print({"corpora": place.listed()}, "\n".join(place.listed()), json=json)
    elif info:
        state = _state(place)
        _print(state, _line(state), json=json)
    elif add and (engine is not None or words is not None):
        raise InputError("--add keeps the corpus' own engine and words; leave these out")
    else:
        _make(place, files, None if add else (engine, words), json=json)


@dataclass(frozen=True, slots=True)
class Folder:
    """A corpus on disk."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def listed(self) -> list[str]:
        """The corpora in the folder, or the folder itself."""
        from graft.rag.corpora.folder import is_corpus

        if is_corpus(self.path):
            return [str(self.path)]
        if not self.path.is_dir():
            raise InputError(f"{self.path} is not a folder")
        return [str(each) for each in sorted(self.path.iterdir()) if is_corpus(each)]

    def about(self) -> tuple["About", int, int | None]:
        """Build settings, number of passages, bytes."""
        from graft.rag.corpora.folder import read_manifest

        manifest = read_manifest(self.path)
        return manifest.about, manifest.passages, manifest.bytes

    def build(self, files: list[str], engines: tuple[str, ...], words: int, report: Any) -> int:  # noqa: ANN401
        """Build a new corpus; returns the number of passages."""
        from graft.rag.corpora.build import build

        return build(self.path, files, engines, words, report).passages

    def add(self, files: list[str], report: Any) -> int:  # noqa: ANN401
        """Add files; returns the number of new passages."""
        from graft.rag.corpora.build import add

        return add(self.path, files, report)[1]


@dataclass(frozen=True, slots=True)
class Milvus:
    """A corpus in a Milvus collection."""

    name: str

    def __str__(self) -> str:
        return str(self._address())

    def listed(self) -> list[str]:
        """The collections of the database."""
        from graft.rag.corpora.milvus import Address, collections

        address = self._address()
        return [str(Address(address.uri, name)) for name in collections(address)]

    def about(self) -> tuple["About", int, int | None]:
        """Build settings, number of passages, None: Milvus does not report bytes."""
        from graft.rag.corpora.milvus import state

        return *state(self._address()), None

    def build(self, files: list[str], engines: tuple[str, ...], words: int, report: Any) -> int:  # noqa: ANN401
        """Build a new collection; returns the number of passages."""
        from graft.rag.corpora.milvus import build

        return build(self._address(), files, engines, words, report)

    def add(self, files: list[str], report: Any) -> int:  # noqa: ANN401
        """Add files; returns the number of new passages."""
        from graft.rag.corpora.milvus import add

        return add(self._address(), files, report)

    def _address(self) -> Any:  # noqa: ANN401
        from graft.rag.corpora.milvus import as_address

        return as_address(self.name)


def _place(corpus: str, engine: str | None) -> Folder | Milvus:
    if corpus.startswith(f"{MILVUS}:"):
        return Milvus(corpus)
    if engine == MILVUS:
        return Milvus(f"{MILVUS}:{corpus}")
    return Folder(Path(corpus).expanduser())


def _make(
    place: Folder | Milvus,
    files: list[str],
    new: tuple[str | None, int | None] | None,
    *,
    json: bool,
) -> None:
    """Build with `new` (engine, words); None adds to the corpus."""
    from graft.rag.corpora.engines import engine_parts
    from graft.retrieval.by_words import WORDS

    began = time.monotonic()
    with Spinner("reading") as spinner:

        def report(passages: int, stage: str) -> None:
            speed = passages / (time.monotonic() - began)
            spinner.update(f"{stage}: {passages:,} passages, {speed:,.0f} passages/s")

        if new is None:
            added = place.add(files, report)
        else:
            engine, words = new
            default = "hybrid" if isinstance(place, Milvus) else "bm25s"
            chosen = default if engine in (None, MILVUS) else engine
            added = place.build(files, engine_parts(chosen), words or WORDS, report)
    state = {**_state(place), "added": added, "seconds": round(time.monotonic() - began, 2)}
    _print(
        state, f"added {added:,} passages in {state['seconds']:.1f} s\n{_line(state)}", json=json
    )


def _state(place: Folder | Milvus) -> dict[str, Any]:
    about, count, size = place.about()
    return {
        "corpus": str(place),
        "passages": count,
        "bytes": size,
        "engines": list(about.engines),
        "words": about.words,
    }


def _line(state: dict[str, Any]) -> str:
    size = "" if state["bytes"] is None else f"{state['bytes'] / MEGABYTE:,.1f} MB, "
    return (
        f"{state['corpus']}: {state['passages']:,} passages of at most {state['words']} words, "
        f"{size}search engine {'+'.join(state['engines'])}"
    )


def _show_found(place: Folder | Milvus, query: str, limit: int, *, json: bool) -> None:
    from dataclasses import asdict

    from graft.rag.corpora.named import open_corpus

    place.about()  # a path that is not a corpus must not be read as a document
    with Spinner("opening the corpus"):
        corpus = open_corpus([str(place)])
    began = time.perf_counter()
    hits = corpus.search(query, limit)
    seconds = time.perf_counter() - began
    state = {
        "seconds": seconds,
        "hits": [{**asdict(hit.passage), "score": hit.score} for hit in hits],
    }
    lines = [f"{len(hits)} passages in {seconds * 1000:.1f} ms"]
    for hit in hits:
        text = " ".join(hit.passage.text.split())
        lines.append(f"{hit.score:.3f}  [{hit.passage.id}] {hit.passage.title}\n  {text[:SHOWN]}")
    _print(state, "\n".join(lines), json=json)


def _print(state: dict[str, Any], text: str, *, json: bool) -> None:
    print(json_module.dumps(state, indent=2, ensure_ascii=False) if json else text)
