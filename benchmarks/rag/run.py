"""Ask every question every way, by turns, and write down every answer at once.

Between two turns the engine forgets what it read, so that no way profits from another's prompts;
what a way may know beforehand, the demonstrations, it reads again, apart from its time.
"""

import datetime
import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import IO, Any

from graft.bench import about
from graft.bench.rag.records import FORMAT, Asked, Key, RagResults, read_rag_results
from graft.bench.rag.scores import predicted, score
from graft.bench.rag.sets import Question, QuestionSet, choose, find_sets
from graft.bench.rag.settings import SUITE, RagSettings, Way
from graft.bench.records import held, output_hash, write_row
from graft.bench.runner import Watch, refuse_mixing
from graft.decode.engine import Engine
from graft.errors import GraftError
from graft.machine import usable_cores
from graft.rag.answer import Answer, Round
from graft.rag.corpus import Bm25Corpus
from graft.rag.document_cache import KindStatistics
from graft.rag.reuse import as_reuse
from graft.rag.round_reuse import DocumentReuse, RoundReuse, reuse_for
from graft.rag.session import Session
from graft.sampling import SamplingParams

WARM_UP = 4  # tokens


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement to make."""

    set: QuestionSet
    question: Question
    policy: str
    way: Way
    repeat: int

    @property
    def key(self) -> Key:
        """The same as that of the answer it yields."""
        return self.set.name, self.question.number, self.policy, self.way.name, self.repeat


def run(settings: RagSettings, out: Path, watch: Watch) -> bool:
    """Measure what is not in `out` yet; whether everything could be."""
    sets = find_sets(settings.data, tuple(settings.sets))
    todo = list(turns(settings, sets))
    with held(out) as file:
        results = read_rag_results(out)
        left = [turn for turn in todo if turn.key not in results.done()]
        watch.begin(len(todo), len(todo) - len(left))
        if not left:
            return True
        watch.turn(f"loading {settings.model}")
        engine = _load(settings)
        header = _header(settings, engine, sets)
        refuse_mixing(out, results.sessions, header["fixed"])
        write_row(file, out, {"record": "header", "format": FORMAT, **header})
        return _Measuring(settings, engine, results, (file, out), watch).all(left)


def turns(settings: RagSettings, sets: list[QuestionSet]) -> Iterator[Turn]:
    """Question by question all ways; who begins changes with every question and repeat."""
    questions = choose(sets, limit=settings.limit, split=settings.split)
    pairs = list(product(settings.policies, settings.ways))
    for repeat in range(settings.repeats):
        for place, chosen in enumerate(questions):
            shift = (place + repeat) % len(pairs)
            for policy, way in pairs[shift:] + pairs[:shift]:
                yield Turn(*chosen, policy, way, repeat)


def _load(settings: RagSettings) -> Engine:
    import torch

    import graft
    from graft.models.forward_panels import use_threads

    torch.set_num_threads(settings.threads or usable_cores())
    use_threads()
    return graft.load(
        settings.model,
        draft_model=settings.draft_model,
        head=settings.head,
        dtype=settings.dtype,
        device=settings.device,
        context_length=settings.context_length,
        **{"max_batch": 1, **settings.load_options},
    )


@dataclass(slots=True)
class _Measuring:
    """One run of the command."""

    settings: RagSettings
    engine: Engine
    results: RagResults
    out: tuple[IO[str], Path]
    watch: Watch
    corpora: dict[str, Bm25Corpus] = field(default_factory=dict)
    warm: set[tuple[str, str]] = field(default_factory=set)
    reuses: dict[tuple[str, str, str], RoundReuse] = field(default_factory=dict)

    def all(self, left: list[Turn]) -> bool:
        """Every turn; whether none failed."""
        whole = True
        for turn in left:
            self.watch.turn(
                f"{turn.set.name} {turn.question.number}: {turn.policy} {turn.way.name}"
            )
            try:
                asked = self._measure(turn)
            except GraftError as error:
                whole = False
                self.watch.say(f"{turn.set.name}, question {turn.question.number}: {error}")
                asked = Asked(**self._described(turn), error=str(error))
            row = {name: value for name, value in asdict(asked).items() if value is not None}
            write_row(*self.out, {"record": "answer", **row})
            self.watch.advance()
        return whole

    def _measure(self, turn: Turn) -> Asked:
        if (turn.policy, turn.way.name) not in self.warm:
            self._warm_up(turn)
        session = self._session(turn, self._reuse(turn))
        most = self.settings.max_tokens or session.family.max_tokens
        before = _passages(session.reuse)
        load = round(os.getloadavg()[0], 2)
        self.engine.step_lock.exclusive(self.engine.model.prefixes.clear)
        answer = session.ask(
            turn.question.text, SamplingParams(max_tokens=most, seed=turn.question.number)
        )
        return Asked(
            **self._described(turn),
            **_measured(turn, answer),
            **_cached(session.reuse, before),
            load_before=load,
        )

    def _reuse(self, turn: Turn) -> RoundReuse:
        """Of this question alone, unless the way itself reaches over questions."""
        chosen, place = as_reuse(turn.way.reuse), (turn.set.name, turn.policy, turn.way.name)
        if not (chosen.approximate and chosen.scope == "all"):
            return reuse_for(self.engine, chosen)
        if place not in self.reuses:
            self.reuses[place] = reuse_for(self.engine, chosen)
        return self.reuses[place]

    def _session(self, turn: Turn, reuse: RoundReuse) -> Session:
        name = turn.set.name
        if name not in self.corpora:
            self.corpora[name] = Bm25Corpus(turn.set.passages)
        return Session(
            self.engine,
            self.corpora[name],
            policy=turn.policy,
            reuse=reuse,
            draft=turn.way.draft,
            guided=turn.way.guided,
            family=name,
        )

    def _warm_up(self, turn: Turn) -> None:
        """Once for each policy and way: whatever is made when it is first used."""
        self.warm.add((turn.policy, turn.way.name))
        session = self._session(turn, reuse_for(self.engine, as_reuse(turn.way.reuse)))
        session.ask(turn.question.text, SamplingParams(max_tokens=WARM_UP, seed=0))

    def _described(self, turn: Turn) -> dict[str, Any]:
        return {
            "set": turn.set.name,
            "question": turn.question.number,
            "policy": turn.policy,
            "way": turn.way.name,
            "repeat": turn.repeat,
            "session": len(self.results.sessions),
            "golds": list(turn.question.golds),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }


def _measured(turn: Turn, answer: Answer) -> dict[str, Any]:
    prediction = predicted(turn.set.name, answer.text)
    totals = asdict(answer.totals)
    totals.pop("demonstration_tokens")
    made = answer.made
    return {
        **totals,
        **asdict(score(turn.set.name, prediction, turn.question.golds)),
        "prediction": prediction,
        "text": answer.text,
        "output": output_hash([list(answer.token_ids)]),
        "approximate": made.approximate,
        "guided": made.guided,
        "reordered": any(each.reordered for each in answer.rounds),
        "language": made.language,
        "forced": answer.forced,
        "overlap": overlap(answer.rounds),
    }


def _passages(reuse: RoundReuse) -> KindStatistics:
    """What a cache of documents has counted so far."""
    known = isinstance(reuse, DocumentReuse)
    return reuse.cache.statistics().passages if known else KindStatistics()


def _cached(reuse: RoundReuse, before: KindStatistics) -> dict[str, int]:
    """What it counted since, and the bytes it holds; nothing where there is none."""
    if not isinstance(reuse, DocumentReuse):
        return {}
    after = reuse.cache.statistics()
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


def _header(settings: RagSettings, engine: Engine, sets: list[QuestionSet]) -> dict[str, Any]:
    """`fixed` must be the same for all lines of a file, or they could not be compared."""
    machine = about.hardware()
    digests = {each.name: hashlib.sha256(repr(each).encode()).hexdigest()[:16] for each in sets}
    fixed = {
        "suite": SUITE,
        **{f"data of {name}": digest for name, digest in digests.items()},
        "model": engine.model_name,
        "weights": engine.loaded.checkpoint.fingerprint[:16],
        "dtype": engine.dtype,
        "device": engine.device,
        "context length": settings.context_length or "the model's own",
        "max_tokens": settings.max_tokens or "of the set",
        "load options": dict(settings.load_options),
        "threads": settings.threads or usable_cores(),
        "cpu": machine["cpu"],
        "cores": machine["cores"],
        "gpus": machine["gpus"],
        **about.versions(),
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": about.commit(),
        "versions": about.versions(),
        "hardware": machine,
        "fixed": fixed,
        "corpora": {each.name: len(each.passages) for each in sets},
        "options": {
            "sets": [each.name for each in sets],
            "policies": list(settings.policies),
            "ways": [way.name for way in settings.ways],
            "limit": settings.limit,
            "split": settings.split,
            "repeats": settings.repeats,
        },
    }
