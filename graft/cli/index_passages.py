"""`graft index passages`: corpora of passages for `graft ask`, on disk or in Milvus."""

import time
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from graft.cli.failures import fails_in_one_line
from graft.cli.options import JSON
from graft.cli.show import Spinner, print_result
from graft.documents.formats import FORMATS
from graft.errors import InputError

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
            help="Files, folders or quoted patterns, also gzipped: JSON arrays and lines, TSV, "
            f"parquet of passages (text, title, id); documents: {FORMATS}.",
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
    json: JSON = False,
) -> None:
    """Build a corpus of passages for `graft ask --corpus`; an interruption changes nothing.

    Example: graft index passages corpus docs
    """
    backend = _backend(corpus, engine)
    if sum((bool(files), query is not None, info, listed)) != 1:
        raise InputError("name FILES to build the corpus from, or one of --query, --info, --list")
    if not files and (add or words is not None or engine is not None):
        raise InputError("--add, --engine and --words are for building: name FILES")
    if query is not None:
        _show_found(backend, query, limit, json=json)
    elif listed:
        corpora = backend[0].listed(backend[1])
        print_result({"corpora": corpora}, "\n".join(corpora), json=json)
    elif info:
        state = _state(backend)
        print_result(state, _line(state), json=json)
    elif add and (engine is not None or words is not None):
        raise InputError("--add keeps the corpus' own engine and words; leave these out")
    else:
        _make(backend, files or [], None if add else (engine, words), json=json)


def _backend(corpus: str, engine: str | None) -> tuple[ModuleType, Any]:
    """The module that has build, add, state and listed for a corpus, and their first argument."""
    if engine == MILVUS and not corpus.startswith(f"{MILVUS}:"):
        corpus = f"{MILVUS}:{corpus}"
    if corpus.startswith(f"{MILVUS}:"):
        from graft.rag.corpora import milvus

        return milvus, milvus.as_address(corpus)
    from graft.rag.corpora import build

    return build, Path(corpus).expanduser()


def _make(
    backend: tuple[ModuleType, Any],
    files: list[str],
    new: tuple[str | None, int | None] | None,
    *,
    json: bool,
) -> None:
    """Build with `new` (engine, words); None adds to the corpus."""
    from graft.rag.corpora.engines import engine_parts
    from graft.retrieval.by_words import WORDS

    module, place = backend
    began = time.monotonic()
    with Spinner("reading") as spinner:

        def report(passages: int, stage: str) -> None:
            speed = passages / (time.monotonic() - began)
            spinner.update(f"{stage}: {passages:,} passages, {speed:,.0f} passages/s")

        if new is None:
            added = module.add(place, files, report)
        else:
            engine, words = new
            default = "bm25s" if isinstance(place, Path) else "hybrid"
            chosen = default if engine in (None, MILVUS) else engine
            added = module.build(place, files, engine_parts(chosen), words or WORDS, report)
    state = {**_state(backend), "added": added, "seconds": round(time.monotonic() - began, 2)}
    line = f"added {added:,} passages in {state['seconds']:.1f} s"
    print_result(state, f"{line}\n{_line(state)}", json=json)


def _state(backend: tuple[ModuleType, Any]) -> dict[str, Any]:
    module, place = backend
    about, count, size = module.state(place)
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


def _show_found(backend: tuple[ModuleType, Any], query: str, limit: int, *, json: bool) -> None:
    from dataclasses import asdict

    from graft.rag.corpora.named import open_corpus

    backend[0].state(backend[1])  # a path that is not a corpus must not be read as a document
    with Spinner("opening the corpus"):
        corpus = open_corpus([str(backend[1])])
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
    print_result(state, "\n".join(lines), json=json)
