"""`graft index`: build, add, compact, info and query of datastores that drafters use.

`index passages`, for the corpora of `graft ask`, is in index_passages.py.
"""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graft.cli.failures import fails_in_one_line
from graft.cli.index_passages import passages
from graft.cli.options import JSON
from graft.cli.show import Spinner, print_result
from graft.documents.formats import FORMATS
from graft.errors import InputError

if TYPE_CHECKING:
    from graft.match.store_build import Progress, StoreWriter
    from graft.match.store_files import Manifest
    from graft.match.suffix_array import Store

MEGABYTE = 1e6
MICRO = 1e-6
SHOWN = 10  # continuations of a query

app = typer.Typer(
    help="Datastores for drafting (store:FOLDER, rest:FOLDER) and corpora for `graft ask`.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)

STORE = Annotated[Path, typer.Argument(metavar="STORE", help="The datastore's folder.")]
FILES = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES...",
        help=f"Files, folders or quoted patterns, also gzipped: {FORMATS}; parquet.",
    ),
]
FIELD = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Text field of JSON and parquet records; a.b for nested ones."
    ),
]
SHARD = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        min=1,
        help="Maximum tokens of a merged shard; sorting needs 12 bytes per token.",
    ),
]


@app.command()
@fails_in_one_line
def build(
    store: STORE,
    files: FILES,
    *,
    model: Annotated[
        str | None, typer.Option(help="Model of the tokenizer: known name, hub id, folder or GGUF.")
    ] = None,
    field: FIELD = "text",
    shard_tokens: SHARD = None,
    json: JSON = False,
) -> None:
    """Build a datastore of documents. Run the same command again to resume.

    Example: graft index build store docs
    """
    from graft.match.store_build import begin_store
    from graft.match.store_files import Manifest, writing
    from graft.models.checkpoints.pretrained import DEFAULT_MODEL
    from graft.models.checkpoints.tokenizer import tokenizer_fingerprint, vocabulary_size

    name = model or DEFAULT_MODEL
    tokenizer = _tokenizer(name)
    new = Manifest(tokenizer_fingerprint(tokenizer), name, vocabulary_size(tokenizer))
    with writing(store):
        writer = _writer(store, begin_store(store, new), shard_tokens)
        _add_files(writer, tokenizer, files, field)
        _merge(writer, beyond=1)
        writer.finish()
    _report(writer, json=json)


@app.command()
@fails_in_one_line
def add(
    store: STORE,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILES...", help="As for `index build`.")
    ] = None,
    *,
    pool: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Add the answers of a pool (`graft serve --pool`) to requests without an API key, "
            "or of the folder of another key in it.",
        ),
    ] = None,
    field: FIELD = "text",
    shard_tokens: SHARD = None,
    json: JSON = False,
) -> None:
    """Add documents or answers to a datastore; those it already has are skipped.

    Example: graft index add store --pool pool
    """
    if not files and pool is None:
        raise InputError("nothing to add; name files, or a pool (--pool)")
    from graft.match.pool_files import pool_texts
    from graft.match.store_build import MAX_SHARDS
    from graft.match.store_files import check_tokenizer, read_manifest, writing
    from graft.models.checkpoints.tokenizer import tokenizer_fingerprint

    tokenizer = _tokenizer(read_manifest(store).model)
    with writing(store):
        manifest = read_manifest(store)
        check_tokenizer(store, manifest, tokenizer_fingerprint(tokenizer))
        writer = _writer(store, manifest, shard_tokens)
        if files:
            _add_files(writer, tokenizer, files, field)
        if pool is not None:
            writer.add_tokens(pool_texts(pool, manifest.tokenizer))
        _merge(writer, beyond=MAX_SHARDS)
    _report(writer, json=json)


@app.command()
@fails_in_one_line
def compact(store: STORE, *, shard_tokens: SHARD = None, json: JSON = False) -> None:
    """Merge small shards: a search visits every shard."""
    from graft.match.store_files import read_manifest, writing

    read_manifest(store)  # refuses a folder that is not a datastore
    with writing(store):
        writer = _writer(store, read_manifest(store), shard_tokens)
        _merge(writer, beyond=1)
    _report(writer, json=json)


@app.command()
@fails_in_one_line
def info(
    store: STORE,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Compare every file with its checksum.")
    ] = False,
    json: JSON = False,
) -> None:
    """Describe a datastore."""
    from graft.match.store_files import check_files, describe, open_arrays

    manifest, _ = open_arrays(store, None)
    if check:
        with Spinner("comparing checksums"):
            for _ in check_files(store, manifest):
                pass
    state = {"store": str(store), **describe(manifest), "checked": check}
    lines = [f"{_contents(state)} for {state['model']}"]
    if not state["complete"]:
        lines.append(
            "not complete: `graft index build` is running or was interrupted; run it again"
        )
    if check:
        lines.append("all checksums match")
    print_result(state, "\n".join(lines), json=json)


@app.command()
@fails_in_one_line
def query(
    store: STORE,
    *,
    text: Annotated[str, typer.Option(help="The context; its last 16 tokens are matched.")],
    model: Annotated[
        str | None, typer.Option(help="Model of the tokenizer; by default the datastore's.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum nodes of the draft tree.")] = 32,
    json: JSON = False,
) -> None:
    """Show what follows a text in the datastore: the draft of store:FOLDER.

    Example: graft index query store --text "The quick brown"
    """
    from graft.match.store_files import read_manifest
    from graft.match.suffix_array import open_store
    from graft.models.checkpoints.tokenizer import tokenizer_fingerprint

    tokenizer = _tokenizer(model or read_manifest(store).model)
    opened = open_store(store, tokenizer_fingerprint(tokenizer))
    found = _lookup(opened, tokenizer, text, limit)
    lines = [
        f"matching tokens: {found['match_length']}; occurrences: {found['hits']:,}; "
        f"{found['microseconds']:.0f} µs"
    ]
    for each in found["continuations"][:SHOWN]:
        lines.append(f"{each['count']:6} of {found['sampled']}  {each['text']!r}")
    print_result(found, "\n".join(lines), json=json)


app.command()(passages)


def _tokenizer(name: str) -> Any:  # noqa: ANN401 (a transformers fast tokenizer)
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    from graft.models.checkpoints.tokenizer import read_tokenizer

    with Spinner("reading the tokenizer"):
        return read_tokenizer(name)


def _writer(store: Path, manifest: "Manifest", shard_tokens: int | None) -> "StoreWriter":
    from graft.match.store_build import MAX_TOKENS, StoreWriter

    return StoreWriter(store, manifest, max_tokens=shard_tokens or MAX_TOKENS)


def _add_files(
    writer: "StoreWriter",
    tokenizer: Any,  # noqa: ANN401
    files: list[str],
    field: str,
) -> None:
    """Add the files, with a progress line."""
    from graft.documents.records import read_texts
    from graft.models.checkpoints.tokenizer import batch_encoder

    started = time.monotonic()
    try:
        with Spinner("reading") as spinner:

            def report(done: "Progress") -> None:
                speed = done.tokens / (time.monotonic() - started)
                spinner.update(
                    f"{done.documents:,} documents, {done.tokens:,} tokens, {speed:,.0f} tokens/s"
                )

            writer.add(read_texts(files, field), batch_encoder(tokenizer), report)
    except KeyboardInterrupt:
        done = writer.manifest
        print(
            f"{done.documents:,} documents are stored; run the same command again to resume",
            file=sys.stderr,
        )
        raise


def _merge(writer: "StoreWriter", *, beyond: int) -> None:
    with Spinner("merging shards"):
        writer.merge(beyond=beyond)


def _report(writer: "StoreWriter", *, json: bool) -> None:
    """Print what was added and the datastore's size, as text or JSON."""
    from graft.match.store_files import describe

    added = writer.progress
    state = {"store": str(writer.folder), **describe(writer.manifest), "added": asdict(added)}
    text = (
        f"added {added.documents:,} documents, {added.tokens:,} tokens; "
        f"{added.duplicates:,} were duplicates\n{_contents(state)}"
    )
    print_result(state, text, json=json)


def _contents(state: dict[str, Any]) -> str:
    return (
        f"{state['store']}: {state['documents']:,} documents, {state['tokens']:,} tokens, "
        f"{state['bytes'] / MEGABYTE:,.1f} MB, shards: {state['shards']}"
    )


def _lookup(store: "Store", tokenizer: Any, text: str, limit: int) -> dict[str, Any]:  # noqa: ANN401
    """The draft after a text: every node with its path, and the lookup time."""
    import numpy as np

    from graft.draft.copies.calibration import STORE_PRIOR, Calibration
    from graft.match.suffix_array import SAMPLE

    index, confidence = store.index(), Calibration(STORE_PRIOR).rates
    tokens = np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)
    index.extend(tokens)
    index.lookup(limit, confidence)  # compiles the kernels and loads the pages
    started = time.perf_counter()
    matches = index.lookup(limit, confidence)
    seconds = time.perf_counter() - started
    hits = store.search_reliable(tokens)
    paths: list[list[int]] = []
    for token, parent in zip(matches.tokens.tolist(), matches.parents.tolist(), strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return {
        "match_length": hits.length,
        "match": tokenizer.decode(tokens[len(tokens) - hits.length :].tolist()),
        "hits": hits.count,
        "sampled": min(hits.count, SAMPLE),
        "microseconds": seconds / MICRO,
        "continuations": [
            {"tokens": path, "text": tokenizer.decode(path), "count": count, "score": score}
            for path, count, score in zip(
                paths, matches.counts.tolist(), matches.scores.tolist(), strict=True
            )
        ],
    }
