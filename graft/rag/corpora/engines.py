"""Search engines of a corpus: BM25, vectors, or several fused by rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.errors import InputError
from graft.retrieval.named import BM25, check_retriever, find_encoder
from graft.retrieval.retriever import Encoder

CHOICES = "bm25s, static, dense, dense:NAME, hybrid or milvus"
PROBE = "The lift at the main entrance was installed in 2011."
SAME = 0.999  # minimum cosine of the probe's vectors by the same encoder on any device


def engine_parts(name: str) -> tuple[str, ...]:
    """`bm25s`, `static`, `dense`, `dense:NAME` or `hybrid`, joined by +, as single engines."""
    parts = check_retriever(name, "engine", CHOICES)
    if len(set(parts)) < len(parts):
        raise InputError(f"the engine {name!r} has a part twice")
    return parts


def searched_text(title: str, text: str) -> str:
    """The indexed text of a passage."""
    return f"{title}\n{text}" if title else text


@dataclass(frozen=True, slots=True)
class About:
    """Build settings of a corpus: engines, maximum words of a passage, and for each encoder the
    vector of a sentence, to detect another encoder of the same name."""

    engines: tuple[str, ...]
    words: int
    probes: Mapping[str, list[float]] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "About":
        """The settings from JSON; ValueError, KeyError or TypeError for other content."""
        probes = {str(name): list(map(float, v)) for name, v in content["probes"].items()}
        return cls(tuple(map(str, content["engines"])), int(content["words"]), probes)

    def size(self, name: str) -> int:
        """Vector size of an encoder."""
        return len(self.probes[name])


Encoders = Mapping[str, Encoder]  # by engine


def describe(engines: tuple[str, ...], words: int) -> tuple[About, Encoders]:
    """The settings of a new corpus, and the encoders among its engines."""
    encoders = _encoders(engines)
    probes = {name: each.encode_question(PROBE).tolist() for name, each in encoders.items()}
    return About(engines, words, probes), encoders


def load_encoders(about: About, where: str) -> Encoders:
    """The encoders of a corpus; InputError for another one of the same name."""
    encoders = _encoders(about.engines)
    for name, encoder in encoders.items():
        made, now = np.asarray(about.probes[name], np.float32), encoder.encode_question(PROBE)
        if made.shape != now.shape or float(made @ now) < SAME:
            raise InputError(
                f"the corpus {where} was built with another encoder {name}: install that one, or "
                "build the corpus again"
            )
    return encoders


def _encoders(engines: tuple[str, ...]) -> Encoders:
    return {name: find_encoder(name) for name in engines if name != BM25}
