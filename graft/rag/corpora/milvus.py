"""A corpus in Milvus: a file of Milvus Lite, or a server or cluster by its URI.

Each passage is an entity with id, title and text. BM25 is Milvus' full-text function, every encoder
has a vector field, and several engines are fused by Milvus' reciprocal rank. The build settings are
in the collection's properties (Milvus Lite keeps these) and its description.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.rag.corpora.engines import BM25, About, Encoders, describe, load_encoders, searched_text
from graft.rag.corpus import Hit, Passage
from graft.rag.corpus_files import Known, read_passages
from graft.retrieval.bm25 import K1, B, question_words
from graft.retrieval.named import RANK_OFFSET

PREFIX = "milvus:"
TOKEN = "GRAFT_MILVUS_TOKEN"  # noqa: S105  name of an environment variable
COLLECTION = "passages"
BUILDING = "_building"
PROPERTY = "graft"
FORMAT = 1
BATCH = 256  # passages at a time
PAGE = 1000  # ids at a time
DEPTH = 100  # minimum passages of each field that are fused
MAX_BYTES = 65_535  # of a text, Milvus' limit
SHOWN = ("title", "text")
Report = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a collection."""

    uri: str
    collection: str

    def __str__(self) -> str:
        return f"{PREFIX}{self.uri}#{self.collection}"


def as_address(name: str) -> Address:
    """From milvus:FILE.db#NAME or milvus:http://HOST:19530#NAME; NAME is "passages" by default."""
    uri, _, collection = name.removeprefix(PREFIX).partition("#")
    if not uri:
        raise InputError(f"{name!r} has no file or server; write milvus:FILE.db#NAME")
    if "://" not in uri:
        return Address(str(Path(uri).expanduser().absolute()), collection or COLLECTION)
    if "@" in uri:
        raise InputError(f"an address of Milvus must not have a password; set the variable {TOKEN}")
    return Address(uri, collection or COLLECTION)


def listed(address: Address) -> list[str]:
    """The collections of Graft at an address."""
    with _client(address) as client:
        names = sorted(client.list_collections())
        names = [name for name in names if _about(client, name) and not name.endswith(BUILDING)]
    return [str(Address(address.uri, name)) for name in names]


def build(
    address: Address, files: Iterable[str], engines: tuple[str, ...], words: int, report: Report
) -> int:
    """Build a collection of files, replacing an existing one; returns the number of passages."""
    about, encoders = describe(engines, words)
    building = f"{address.collection}{BUILDING}"
    with _client(address) as client:
        _check_owner(client, address)
        client.drop_collection(building)  # of an interrupted build
        _create(client, building, about)
        try:
            count = _insert(client, building, read_passages(files, words), about, encoders, report)
            if not count:
                raise InputError("the corpus has no passages; name files that hold some")
            client.drop_collection(address.collection)
            client.rename_collection(building, address.collection)
        finally:
            client.drop_collection(building)
    return count


def state(address: Address) -> tuple[About, int, None]:
    """Build settings and number of passages of a collection; Milvus does not report bytes."""
    with _client(address) as client:
        return _loaded(client, address), _count(client, address.collection), None


def add(address: Address, files: Iterable[str], report: Report) -> int:
    """Add files to a collection; returns the number of new passages."""
    with _client(address) as client:
        about = _loaded(client, address)
        encoders = load_encoders(about, str(address))
        known = Known(_passages(client, address.collection))
        fresh = read_passages(files, about.words, known)
        return _insert(client, address.collection, fresh, about, encoders, report)


class MilvusCorpus:
    """A `Corpus` in a collection. Full-text scores are positive; servers differ in the sign."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client = _connected(address)
        with _errors(address):
            self.about = _loaded(self._client, address)
        self._encoders = load_encoders(self.about, str(address))

    def __len__(self) -> int:
        with _errors(self.address):
            return _count(self._client, self.address.collection)

    def search(self, query: str, k: int) -> list[Hit]:
        """See Corpus."""
        own = {name: self._query(name, query) for name in self.about.engines}
        queries = {name: each for name, each in own.items() if each is not None}
        with _errors(self.address):
            if len(queries) > 1:  # Milvus Lite also fuses irrelevant passages
                queries = {name: each for name, each in queries.items() if self._one(name, each, 1)}
            if len(queries) > 1:
                found = self._several(queries, k)
            else:
                found = [hit for name, each in queries.items() for hit in self._one(name, each, k)]
        return [
            Hit(Passage(str(each["id"]), *_shown(each["entity"])), abs(each["distance"]))
            for each in found
        ]

    def _query(self, name: str, query: str) -> str | list[float] | None:
        """The query of an engine; None if it has none."""
        if name == BM25:
            return " ".join(question_words(query)) or None
        return self._encoders[name].encode_question(query).tolist() if query.strip() else None

    def _one(self, name: str, query: str | list[float], k: int) -> list[dict[str, Any]]:
        return self._client.search(
            self.address.collection,
            data=[query],
            anns_field=_field(self.about, name),
            search_params=self._parameters(name),
            limit=k,
            output_fields=list(SHOWN),
        )[0]

    def _several(self, queries: Mapping[str, Any], k: int) -> list[dict[str, Any]]:
        from pymilvus import AnnSearchRequest, RRFRanker

        requests = [
            AnnSearchRequest(
                [each], _field(self.about, name), self._parameters(name), limit=max(DEPTH, k)
            )
            for name, each in queries.items()
        ]
        return self._client.hybrid_search(
            self.address.collection,
            requests,
            RRFRanker(RANK_OFFSET),
            limit=k,
            output_fields=list(SHOWN),
        )[0]

    def _parameters(self, name: str) -> dict[str, Any]:
        if name == BM25:
            return {"metric_type": "BM25"}
        return {"metric_type": "COSINE", "params": {"radius": self._encoders[name].min_cosine}}


def _shown(entity: Mapping[str, str]) -> tuple[str, str]:
    return entity["text"], entity["title"]


def _field(about: About, name: str) -> str:
    return "words" if name == BM25 else f"vectors_{about.engines.index(name)}"


def _connected(address: Address) -> Any:  # noqa: ANN401 (pymilvus is optional)
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise InputError("Milvus needs pymilvus; type: pip install 'graftlm[milvus]'") from None
    with _errors(address):
        return MilvusClient(address.uri, token=os.environ.get(TOKEN, ""))


@contextmanager
def _client(address: Address) -> Iterator[Any]:
    client = _connected(address)
    try:
        with _errors(address):
            yield client
    finally:
        client.close()


@contextmanager
def _errors(address: Address) -> Iterator[None]:
    """Errors of Milvus as InputError."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except (MilvusException, OSError) as error:
        message = " ".join(str(getattr(error, "message", error)).split())
        raise InputError(f"Milvus at {address.uri} failed: {message}") from error


def _about(client: Any, name: str) -> About | None:  # noqa: ANN401
    """Build settings of a collection; None if it is not Graft's."""
    described = client.describe_collection(name)
    for text in (described.get("properties", {}).get(PROPERTY), described.get("description")):
        try:
            content = json.loads(text or "")
            return About.from_dict(content) if content["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def _loaded(client: Any, address: Address) -> About:  # noqa: ANN401
    """Load a collection for search; returns its build settings."""
    again = f"build it with: graft index passages {address} FILES"
    if not client.has_collection(address.collection):
        raise InputError(f"there is no collection {address.collection} at {address.uri}; {again}")
    if about := _about(client, address.collection):
        client.load_collection(address.collection)
        return about
    raise InputError(f"the collection {address} was not built by this version of Graft; {again}")


def _check_owner(client: Any, address: Address) -> None:  # noqa: ANN401
    """Raise InputError for a collection that is not Graft's: it must not be replaced."""
    exists = client.has_collection(address.collection)
    if exists and not _about(client, address.collection):
        raise InputError(f"the collection {address} is not Graft's; name another one")


def _create(client: Any, name: str, about: About) -> None:  # noqa: ANN401
    from pymilvus import DataType, Function, FunctionType

    settings = json.dumps({"format": FORMAT, **asdict(about)})
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=settings)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=512)
    schema.add_field("title", DataType.VARCHAR, max_length=MAX_BYTES)
    schema.add_field("text", DataType.VARCHAR, max_length=MAX_BYTES)
    schema.add_field("searched", DataType.VARCHAR, max_length=MAX_BYTES, enable_analyzer=True)
    indexes = client.prepare_index_params()
    for engine in about.engines:
        field = _field(about, engine)
        if engine == BM25:
            schema.add_field(field, DataType.SPARSE_FLOAT_VECTOR)
            bm25 = Function("bm25", FunctionType.BM25, ["searched"], [field])
            schema.add_function(bm25)
            constants = {"bm25_k1": K1, "bm25_b": B}
            indexes.add_index(field, "SPARSE_INVERTED_INDEX", metric_type="BM25", params=constants)
        else:
            schema.add_field(field, DataType.FLOAT_VECTOR, dim=about.size(engine))
            indexes.add_index(field, "AUTOINDEX", metric_type="COSINE")
    client.create_collection(
        name, schema=schema, index_params=indexes, properties={PROPERTY: settings}
    )


def _insert(
    client: Any,  # noqa: ANN401
    name: str,
    passages: Iterable[Passage],
    about: About,
    encoders: Encoders,
    report: Report,
) -> int:
    """Insert passages with their vectors in batches; returns their number."""
    count, rest = 0, iter(passages)
    while batch := list(islice(rest, BATCH)):
        rows = [_row(each) for each in batch]
        for engine, encoder in encoders.items():
            vectors = encoder.encode_passages([row["searched"] for row in rows])
            for row, vector in zip(rows, vectors.tolist(), strict=True):
                row[_field(about, engine)] = vector
        client.upsert(name, rows)
        count += len(batch)
        report(count, "reading")
    return count


def _row(passage: Passage) -> dict[str, Any]:
    searched = searched_text(passage.title, passage.text)
    if len(searched.encode(errors="replace")) > MAX_BYTES:
        raise InputError(
            f"the passage {passage.id} has more than {MAX_BYTES:,} bytes, Milvus' limit; "
            "choose fewer --words"
        )
    return {"id": passage.id, "title": passage.title, "text": passage.text, "searched": searched}


def _passages(client: Any, name: str) -> Iterator[Passage]:  # noqa: ANN401
    """All passages of a collection."""
    with _quiet():
        pages = client.query_iterator(name, batch_size=PAGE, output_fields=["id", *SHOWN])
        while page := pages.next():
            yield from (Passage(str(row["id"]), *_shown(row)) for row in page)
        pages.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings that Milvus Lite has no timestamps; they are not needed."""
    loggers = [logging.getLogger(name) for name in ("pymilvus", "grpc._server")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _count(client: Any, name: str) -> int:  # noqa: ANN401
    return int(client.query(name, filter="", output_fields=["count(*)"])[0]["count(*)"])
