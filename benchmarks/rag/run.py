"""Answer every question with every policy and variant in turn; every row is written at once.

The prefix cache is cleared between two measurements, so that no variant profits from another's
prompts; demonstrations are prefilled again and timed apart.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from benchmarks.rag.scores import predicted, score
from benchmarks.rag.sets import Question, QuestionSet, choose, find_sets
from benchmarks.rag.settings import RagSettings, RagVariant, as_variant
from benchmarks.settings import load_arguments
from graft.bench.measure import Progress
from graft.bench.result_file import ResultFile, Row, new_header, now, output_hash
from graft.decode.engine import Engine
from graft.errors import GraftError
from graft.machine import usable_cores
from graft.models.heads.installed import named_head
from graft.rag.answer import Answer, Round
from graft.rag.corpus import Bm25Corpus
from graft.rag.document_cache import DocumentCache, KindStatistics
from graft.rag.reuse import as_reuse
from graft.rag.session import Session
from graft.sampling import SamplingParams

WARM_UP = 4  # tokens


SETTINGS = RagSettings


@dataclass(frozen=True, slots=True)
class Measurement:
    """One question with one policy and variant."""

    set: QuestionSet
    question: Question
    policy: str
    variant: RagVariant
    repeat: int

    @property
    def row(self) -> Row:
        """The fields that describe it in the file."""
        return {
            "set": self.set.name,
            "question": self.question.number,
            "policy": self.policy,
            "variant": self.variant.name,
            "repeat": self.repeat,
        }


def run(settings: RagSettings, file: ResultFile, progress: Progress) -> bool:
    """Measure what the file does not have yet; False if something failed."""
    sets = find_sets(settings.data, settings.sets)
    measurements = list(plan(settings, sets))
    left = [each for each in measurements if not file.results.has(each.row)]
    progress.begin(len(measurements), len(measurements) - len(left))
    if not left:
        return True
    progress.show(f"loading {settings.model}")
    engine = _load(settings)
    file.begin(new_header(settings.kind, _about(settings, engine, sets)))
    return _Measuring(settings, engine, file, progress).all(left)


def plan(settings: RagSettings, sets: list[QuestionSet]) -> Iterator[Measurement]:
    """Question by question all variants; the first one changes with every question and repeat."""
    questions = choose(sets, limit=settings.limit, split=settings.split)
    pairs = list(product(settings.policies, map(as_variant, settings.variants)))
    for repeat in range(settings.repeats):
        for place, chosen in enumerate(questions):
            shift = (place + repeat) % len(pairs)
            for policy, variant in pairs[shift:] + pairs[:shift]:
                yield Measurement(*chosen, policy, variant, repeat)


def _load(settings: RagSettings) -> Engine:
    import torch

    import graft
    from graft.models.forward_panels import use_threads

    torch.set_num_threads(settings.threads or usable_cores())
    use_threads()
    return graft.load(
        settings.model,
        draft_model=settings.draft_model,
        head=named_head(settings.head),
        dtype=settings.dtype,
        device=settings.device,
        context_length=settings.context_length,
        **{"max_batch": 1, **load_arguments(settings.load_options)},
    )


@dataclass(slots=True)
class _Measuring:
    settings: RagSettings
    engine: Engine
    file: ResultFile
    progress: Progress
    corpora: dict[str, Bm25Corpus] = field(default_factory=dict)
    warm: set[tuple[str, str]] = field(default_factory=set)
    caches: dict[tuple[str, str, str], DocumentCache] = field(default_factory=dict)

    def all(self, left: list[Measurement]) -> bool:
        """Every measurement; False if one failed."""
        complete = True
        for each in left:
            name = f"{each.set.name} {each.question.number}: {each.policy} {each.variant.name}"
            self.progress.show(name)
            try:
                row = self._measure(each)
            except GraftError as error:
                complete = False
                self.progress.say(f"{name}: {error}")
                row = {"error": str(error)}
            golds = list(each.question.golds)
            self.file.row({**each.row, **row, "golds": golds, "date": now()})
            self.progress.advance()
        return complete

    def _measure(self, each: Measurement) -> Row:
        if (each.policy, each.variant.name) not in self.warm:
            self._warm_up(each)
        session = self._session(each, self._cache(each))
        max_tokens = self.settings.max_tokens or session.family.max_tokens
        before = session.cache.statistics().passages
        load = round(os.getloadavg()[0], 2)
        self.engine.loop.lock.exclusive(self.engine.model.prefixes.clear)
        params = SamplingParams(max_tokens=max_tokens, seed=each.question.number)
        answer = session.ask(each.question.text, params)
        return {**_measured(each, answer), **_cached(session.cache, before), "load": load}

    def _cache(self, each: Measurement) -> DocumentCache:
        """Of this question alone, unless the variant reuses over questions."""
        chosen, place = (
            as_reuse(each.variant.reuse),
            (each.set.name, each.policy, each.variant.name),
        )
        if not (chosen.approximate and chosen.scope == "all"):
            return DocumentCache(self.engine, chosen)
        if place not in self.caches:
            self.caches[place] = DocumentCache(self.engine, chosen)
        return self.caches[place]

    def _session(self, each: Measurement, reuse: str | DocumentCache) -> Session:
        name = each.set.name
        if name not in self.corpora:
            self.corpora[name] = Bm25Corpus(each.set.passages)
        return Session(
            self.engine,
            self.corpora[name],
            policy=each.policy,
            thresholds=self.settings.thresholds,
            reuse=reuse,
            draft=each.variant.draft,
            guided=each.variant.guided,
            family=name,
        )

    def _warm_up(self, each: Measurement) -> None:
        """Once per policy and variant."""
        self.warm.add((each.policy, each.variant.name))
        session = self._session(each, each.variant.reuse)
        session.ask(each.question.text, SamplingParams(max_tokens=WARM_UP, seed=0))


def _measured(each: Measurement, answer: Answer) -> dict[str, Any]:
    prediction = predicted(each.set.name, answer.text)
    totals = asdict(answer.totals)
    totals.pop("demonstration_tokens")
    made = answer.made
    return {
        **totals,
        **asdict(score(each.set.name, prediction, each.question.golds)),
        "prediction": prediction,
        "text": answer.text,
        "output": output_hash([list(answer.token_ids)]),
        "approximate": made.approximate,
        "guided": made.guided,
        "reordered": any(one.reordered for one in answer.rounds),
        "language": made.language,
        "forced": answer.forced,
        "overlap": overlap(answer.rounds),
    }


def _cached(cache: DocumentCache, before: KindStatistics) -> dict[str, int]:
    """Passages and hits since `before`, and the bytes of the cache; nothing without reuse."""
    if cache.reuse.name == "off":
        return {}
    after = cache.statistics()
    return {
        "passages": after.passages.parts - before.parts,
        "passage_hits": after.passages.hits - before.hits,
        "cache_bytes": after.memory_bytes,
    }


def overlap(rounds: list[Round]) -> float | None:
    """Of the passages of all searches but the first, the share that an earlier one had found."""
    seen: set[str] = set()
    shares = []
    for each in (each for each in rounds if each.query is not None and each.hits):
        ids = {hit.passage.id for hit in each.hits}
        if seen:
            shares.append(len(ids & seen) / len(ids))
        seen |= ids
    return sum(shares) / len(shares) if shares else None


def _about(settings: RagSettings, engine: Engine, sets: list[QuestionSet]) -> dict[str, Any]:
    """The settings in the header, with digests of the questions."""
    digests = {each.name: hashlib.sha256(repr(each).encode()).hexdigest()[:16] for each in sets}
    return settings.as_json() | {
        "model": engine.model_name,
        "weights": engine.loaded.checkpoint.fingerprint[:16],
        "dtype": engine.dtype,
        "device": engine.device,
        "threads": settings.threads or usable_cores(),
        "sets": [each.name for each in sets],
        **{f"questions of {name}": digest for name, digest in digests.items()},
        **{f"passages of {each.name}": len(each.passages) for each in sets},
    }
