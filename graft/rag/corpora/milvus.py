"""A corpus in Milvus: an embedded file of Milvus Lite, or a server or cluster by its URI.

Each passage is an entity with id, title and text; BM25 is Milvus' own full-text function, every
encoder has a field of vectors, and several are fused by Milvus' reciprocal rank. How the collection
was made stands in its properties (Milvus Lite keeps these) and its description.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.rag.corpora.engines import (
    BM25,
    About,
    check_encoders,
    describe,
    load_encoders,
    searched_text,
)
from graft.rag.corpus import K1, B, Hit, Passage
from graft.rag.corpus_files import Known, read_passages
from graft.retrieval.bm25 import question_words
from graft.retrieval.encoder import Encoder
from graft.retrieval.fusion import RANK_OFFSET

PREFIX = "milvus:"
TOKEN = "GRAFT_MILVUS_TOKEN"  # noqa: S105  name of an environment variable
COLLECTION = "passages"
BUILDING = "_building"
PROPERTY = "graft"
FORMAT = 1
BATCH = 256  # passages at a time
PAGE = 1000  # ids at a time
DEEP = 100  # of each field that are fused
MOST_BYTES = 65_535  # of a text, Milvus' own limit
SHOWN = ("title", "text")
Report = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a collection is."""

    uri: str
    collection: str

    def __str__(self) -> str:
        return f"{PREFIX}{self.uri}#{self.collection}"


def as_address(name: str) -> Address:
    """From milvus:FILE.db#NAME or milvus:http://HOST:19530#NAME; NAME is passages if left out."""
    uri, _, collection = name.removeprefix(PREFIX).partition("#")
    if not uri:
        raise InputError(f"{name!r} names no file and no server; write milvus:FILE.db#NAME")
    if "://" not in uri:
        return Address(str(Path(uri).expanduser().absolute()), collection or COLLECTION)
    if "@" in uri:
        raise InputError(f"no passwords in addresses of Milvus; put them into the variable {TOKEN}")
    return Address(uri, collection or COLLECTION)


def collections(address: Address) -> list[str]:
    """The collections at an address that Graft made."""
    with _talking(address) as client:
        names = sorted(client.list_collections())
        return [name for name in names if _about(client, name) and not name.endswith(BUILDING)]


def build(
    address: Address, files: Iterable[str], engines: tuple[str, ...], words: int, report: Report
) -> int:
    """A new collection of files, in place of one that may be there; how many passages."""
    encoders = load_encoders(engines)
    about = describe(engines, words, encoders)
    building = f"{address.collection}{BUILDING}"
    with _talking(address) as client:
        _refuse_others(client, address)
        client.drop_collection(building)  # of a build that was interrupted
        _create(client, building, about)
        try:
            count = _insert(client, building, read_passages(files, words), encoders, report)
            if not count:
                raise InputError("the corpus has no passages; name files that hold some")
            client.drop_collection(address.collection)
            client.rename_collection(building, address.collection)
        finally:
            client.drop_collection(building)
    return count


def state(address: Address) -> tuple[About, int]:
    """How a collection was made, and how many passages it has."""
    with _talking(address) as client:
        return _made(client, address), _count(client, address.collection)


def add(address: Address, files: Iterable[str], report: Report) -> int:
    """More files into a collection: how many passages are new."""
    with _talking(address) as client:
        about = _made(client, address)
        encoders = load_encoders(about.engines)
        check_encoders(about, encoders, str(address))
        known = Known(_passages(client, address.collection))
        fresh = read_passages(files, about.words, known)
        return _insert(client, address.collection, fresh, encoders, report)


class MilvusCorpus:
    """A `Corpus` in a collection. Full-text scores are positive, whatever sign a server gives."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client = _connected(address)
        with _errors(address):
            self.about = _made(self._client, address)
        self._encoders = load_encoders(self.about.engines)
        check_encoders(self.about, self._encoders, str(address))

    def __len__(self) -> int:
        with _errors(self.address):
            return _count(self._client, self.address.collection)

    def search(self, query: str, k: int) -> list[Hit]:
        """See Corpus."""
        asked = {
            name: asked
            for name in self.about.engines
            if (asked := self._asked(name, query)) is not None
        }
        if not asked:
            return []
        with _errors(self.address):
            if len(asked) > 1:  # Milvus Lite fuses what is not near too
                asked = {name: each for name, each in asked.items() if self._one(name, each, 1)}
            found = self._several(asked, k) if len(asked) > 1 else self._one_of(asked, k)
        return [
            Hit(Passage(str(each["id"]), *_shown(each["entity"])), abs(each["distance"]))
            for each in found
        ]

    def _asked(self, name: str, query: str) -> str | list[float] | None:
        """What a field is searched for; None for nothing."""
        if name == BM25:
            return " ".join(question_words(query)) or None
        return self._encoders[name].encode_question(query).tolist() if query.strip() else None

    def _one_of(self, asked: Mapping[str, Any], k: int) -> list[dict[str, Any]]:
        return [hit for name, each in asked.items() for hit in self._one(name, each, k)]

    def _one(self, name: str, asked: str | list[float], k: int) -> list[dict[str, Any]]:
        return self._client.search(
            self.address.collection,
            data=[asked],
            anns_field=_field(self.about, name),
            search_params=self._parameters(name),
            limit=k,
            output_fields=list(SHOWN),
        )[0]

    def _several(self, asked: Mapping[str, Any], k: int) -> list[dict[str, Any]]:
        from pymilvus import AnnSearchRequest, RRFRanker

        requests = [
            AnnSearchRequest(
                [each], _field(self.about, name), self._parameters(name), limit=max(DEEP, k)
            )
            for name, each in asked.items()
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
def _talking(address: Address) -> Iterator[Any]:
    client = _connected(address)
    try:
        with _errors(address):
            yield client
    finally:
        client.close()


@contextmanager
def _errors(address: Address) -> Iterator[None]:
    """One line for whatever Milvus or its file say."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except (MilvusException, OSError) as error:
        said = " ".join(str(getattr(error, "message", error)).split())
        raise InputError(f"Milvus at {address.uri} refuses: {said}") from error


def _about(client: Any, name: str) -> About | None:  # noqa: ANN401
    """How a collection was made; None if not by Graft."""
    told = client.describe_collection(name)
    for text in (told.get("properties", {}).get(PROPERTY), told.get("description")):
        try:
            content = json.loads(text or "")
            return About.from_dict(content) if content["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def _made(client: Any, address: Address) -> About:  # noqa: ANN401
    """How a collection was made; it is ready to be searched then."""
    again = f"make it with: graft index passages {address} FILES"
    if not client.has_collection(address.collection):
        raise InputError(f"there is no collection {address.collection} at {address.uri}; {again}")
    if about := _about(client, address.collection):
        client.load_collection(address.collection)
        return about
    raise InputError(f"the collection {address} was not made by this version of Graft; {again}")


def _refuse_others(client: Any, address: Address) -> None:  # noqa: ANN401
    """A collection that somebody else made is not replaced."""
    there = client.has_collection(address.collection)
    if there and not _about(client, address.collection):
        raise InputError(f"the collection {address} is not Graft's; name another one")


def _create(client: Any, name: str, about: About) -> None:  # noqa: ANN401
    from pymilvus import DataType, Function, FunctionType

    told = json.dumps({"format": FORMAT, **about.as_dict()})
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=told)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=512)
    schema.add_field("title", DataType.VARCHAR, max_length=MOST_BYTES)
    schema.add_field("text", DataType.VARCHAR, max_length=MOST_BYTES)
    schema.add_field("searched", DataType.VARCHAR, max_length=MOST_BYTES, enable_analyzer=True)
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
    client.create_collection(name, schema=schema, index_params=indexes, properties={PROPERTY: told})


def _insert(
    client: Any,  # noqa: ANN401
    name: str,
    passages: Iterable[Passage],
    encoders: Mapping[str, Encoder],
    report: Report,
) -> int:
    """Passages with their vectors, some at a time; how many."""
    about, count, rest = _about(client, name), 0, iter(passages)
    while some := list(islice(rest, BATCH)):
        rows = [_row(each) for each in some]
        for engine, encoder in encoders.items():
            vectors = encoder.encode_passages([row["searched"] for row in rows])
            for row, vector in zip(rows, vectors.tolist(), strict=True):
                row[_field(about, engine)] = vector
        client.upsert(name, rows)
        count += len(some)
        report(count, "reading")
    return count


def _row(passage: Passage) -> dict[str, Any]:
    searched = searched_text(passage.title, passage.text)
    if len(searched.encode(errors="replace")) > MOST_BYTES:
        raise InputError(
            f"the passage {passage.id} has more than {MOST_BYTES:,} bytes, the most that Milvus "
            "holds; choose fewer --words"
        )
    return {"id": passage.id, "title": passage.title, "text": passage.text, "searched": searched}


def _passages(client: Any, name: str) -> Iterator[Passage]:  # noqa: ANN401
    """All that a collection has."""
    with _quiet():
        pages = client.query_iterator(name, batch_size=PAGE, output_fields=["id", *SHOWN])
        while page := pages.next():
            yield from (Passage(str(row["id"]), *_shown(row)) for row in page)
        pages.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Milvus Lite keeps no time of its own, which these report at length; it is not needed."""
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
