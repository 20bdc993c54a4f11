"""Run a benchmark: give every system its turns, write down every answer at once."""

import datetime
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from graft.bench import about
from graft.bench.encode import Workload, encode
from graft.bench.golden import Golden, Weighing
from graft.bench.plan import Turn, turns
from graft.bench.records import Answer, Asked, Results, Writer, open_results, output_hash
from graft.bench.settings import Settings
from graft.bench.systems import System
from graft.bench.task import Prompt, chat, read_suite, select
from graft.bench.worker import RequestError, Worker, WorkerError
from graft.bench.workers import PEER_DTYPES, Idle, Workers
from graft.errors import GraftError, InputError
from graft.models.checkpoints.pretrained import Checkpoint, locate
from graft.models.heads.load import AUTO_HEAD
from graft.models.load import find_device

WARM_UP_PROMPT, WARM_UP = 64, 12  # tokens
REPLY = 128  # tokens of a reply to a follow-up


class Watch(Protocol):
    """Who is told how a run goes on."""

    def begin(self, total: int, done: int) -> None:
        """So many measurements, of which some stand in the file already."""

    def turn(self, text: str) -> None:
        """What happens now."""

    def advance(self) -> None:
        """One measurement more is over."""

    def say(self, line: str) -> None:
        """Something a reader of the results must know."""


def run(settings: Settings, out: Path, watch: Watch, idle: Idle | None = None) -> bool:
    """Measure what is not in `out` yet; whether every system could be measured. Workers end with
    the run, but for those that are left to the next one as `idle`."""
    if os.name != "posix":
        raise InputError("graft bench stops idle workers by signals: it needs Linux or macOS")
    suite = read_suite(settings.suite, settings.data)
    half = select(suite, limit=None, split=settings.split, categories=tuple(settings.categories))
    checkpoint = locate(settings.model)
    workload = encode(checkpoint.folder, half, settings)
    for note in workload.notes:
        watch.say(note)
    with open_results(out) as (results, writer):
        kind = _kind(settings, results)
        workers = Workers(settings, checkpoint.folder, workload.room, out, *kind, idle)
        try:
            _settle_dtype(workers, watch)
            header = _header(settings, workers, checkpoint, suite) | {"notes": workload.notes}
            refuse_mixing(out, results.sessions, header["fixed"])
            session = Session(settings, workload, results, writer, workers, watch)
            complete = session.run(header)
        except BaseException:
            workers.kill()
            raise
        workers.close()
    return complete


def _kind(settings: Settings, results: Results) -> tuple[str, str]:
    """dtype and device; "auto" goes on with what the file was begun with."""
    device = settings.device
    if device == "auto":
        device = find_device(device).type
    if settings.dtype == "auto" and results.sessions:
        return results.sessions[0]["fixed"]["dtype"], device
    return settings.dtype, device


def _settle_dtype(workers: Workers, watch: Watch) -> None:
    """Graft's worker knows what "auto" is here; the peers then take the same."""
    if workers.dtype == "auto":
        watch.turn("starting graft")
        worker = workers.get(workers.settings.systems[0])
        workers.dtype = worker.about["settings"]["dtype"]


def _header(
    settings: Settings, workers: Workers, checkpoint: Checkpoint, suite: list[Prompt]
) -> dict[str, Any]:
    """`fixed` must be the same for all lines of a file, or they could not be compared."""
    machine = about.hardware()
    fixed = {
        "suite": settings.suite,
        "data": hashlib.sha256(repr(suite).encode()).hexdigest()[:16],
        "model": checkpoint.name,
        "weights": checkpoint.fingerprint[:16],
        "draft model": settings.draft_model or "none",
        "load options": dict(settings.load_options),
        **({} if settings.head == AUTO_HEAD else {"head": Path(settings.head).name}),
        "context length": settings.context_length or "the model's own",
        "dtype": workers.dtype,
        "device": workers.device,
        "max_tokens": settings.max_tokens,
        "rehearsals": settings.rehearsals,
        "ignore eos": settings.ignore_eos,
        "threads": settings.threads,
        **{f"{name} options": list(settings.peer_options.get(name, ())) for name in settings.peers},
        **({"gguf": settings.gguf.name} if settings.gguf else {}),
        **({"draft gguf": settings.draft_gguf.name} if settings.draft_gguf else {}),
        "cpu": machine["cpu"],
        "cores": machine["cores"],
        "gpus": machine["gpus"],
        **about.versions(),
    }
    return {
        "date": _now(),
        "commit": about.commit(),
        "versions": about.versions(),
        "hardware": machine,
        "fixed": fixed,
        "options": {
            "draft": list(settings.drafts),
            "peers": list(settings.peers),
            "temperature": list(settings.temperatures),
            "batch": list(settings.batches),
            "context": list(settings.contexts),
            "limit": settings.limit,
            "groups": settings.groups,
            "split": settings.split,
            "category": list(settings.categories),
            "repeats": settings.repeats,
        },
    }


def refuse_mixing(out: Path, sessions: list[dict[str, Any]], fixed: dict[str, Any]) -> None:
    """What only one of two sessions has, such as a peer's options, does not disagree."""
    for session in sessions:
        for name, before in session["fixed"].items():
            if (now := fixed.get(name, before)) != before:
                raise InputError(
                    f"{out} was measured with {name} {before}, not {now}, and cannot be compared; "
                    "name another --out"
                )


@dataclass(slots=True)
class Session:
    """One run of the command; a result file may hold several."""

    settings: Settings
    workload: Workload
    results: Results
    writer: Writer
    workers: Workers
    watch: Watch
    announced: set[str] = field(default_factory=set)  # workers written down

    def run(self, header: dict[str, Any]) -> bool:
        """Give every system its turns; whether none had to be given up."""
        systems = self._able()
        todo = list(turns(self.settings, systems, self.workload))
        done = self.results.done()
        left = [turn for turn in todo if turn.key not in done]
        self.watch.begin(len(todo), len(todo) - len(left))
        asked = Golden(self.settings, self.workload, self.results).left(todo)
        if left or asked:
            self.writer.header(header)
            self._write_prompts()
            self._write_gold()
        for turn in left:
            if turn.system.process not in self.workers.failed:
                self._take(turn)
            self.watch.advance()
        for question in asked:
            self._weigh(question)
        return not self.workers.failed

    def _write_prompts(self) -> None:
        for context, prompts in self.workload.prompts.items():
            for each in prompts:
                number = each.prompt.number
                if (number, context) not in self.results.prompts:
                    asked = Asked(each.prompt.category, each.token_ids)
                    self.writer.prompt(number, context, asked)

    def _write_gold(self) -> None:
        for prompt in self.workload.asked:
            if prompt.gold and prompt.number not in self.results.gold:
                self.writer.gold(prompt.number, prompt.gold)

    def _weigh(self, question: Weighing) -> None:
        """How likely gold is; what fails is a line for the reader."""
        turn = question.turn
        if turn.system.process in self.workers.failed:
            return
        self.watch.turn(f"{turn.system.name}: likelihood of gold, prompt {turn.numbers[0]}")
        try:
            told = self._worker(turn).ask(self._request(turn) | {"gold": [question.gold]})
        except WorkerError as error:
            self.workers.fail(turn.system)
            self.watch.say(f"{turn.system.name}: {error}")
        except RequestError as error:
            self.watch.say(f"{turn.system.name}, gold of prompt {turn.numbers[0]}: {error}")
        else:
            self.writer.likelihood(question.likelihood(told["log_likelihoods"][0]))

    def _able(self) -> list[System]:
        """The systems that can run as asked; a line for each that cannot."""
        able = []
        for system in self.settings.systems:
            if system.engine != "graft" and self.workers.dtype not in PEER_DTYPES:
                self.watch.say(f"{system.name} is left out: it has no {self.workers.dtype}")
                continue
            if not system.batches and max(self.settings.batches) > 1:
                self.watch.say(f"{system.name} takes one prompt at a time: no batches")
            able.append(system)
        return able

    def _take(self, turn: Turn) -> None:
        """Measure; what fails becomes a line for the reader and one in the file."""
        try:
            self._measure(turn)
        except WorkerError as error:
            self.workers.fail(turn.system)
            self._failed(turn, error, "the other systems go on")
        except RequestError as error:
            self._failed(turn, error, "tried again when the run is continued")

    def _failed(self, turn: Turn, error: GraftError, then: str) -> None:
        self.watch.say(f"{turn.system.name}, prompt {turn.numbers[0]}: {error}; {then}")
        self.writer.answer(Answer(**self._described(turn), error=str(error)))

    def _measure(self, turn: Turn) -> None:
        worker = self._worker(turn)
        request = self._request(turn)
        cell = f"{turn.category}, temperature {turn.temperature:g}, batch {turn.batch}"
        cell += f", context {turn.context}" if turn.context else ""
        kind = (turn.system.method, turn.batch, turn.temperature > 0)
        if kind not in worker.warm:
            self.watch.turn(f"{turn.system.name}: warming up")
            worker.ask(_short(request))
            worker.warm.add(kind)
        for _ in range(self.settings.rehearsals):
            self.watch.turn(f"{turn.system.name}: rehearsing, {cell}")
            worker.ask(request)
        self.watch.turn(f"{turn.system.name}: {cell}")
        load = round(os.getloadavg()[0], 2)
        told = worker.ask(request)
        texts = self._texts(turn, told)
        answer = Answer(
            **self._described(turn),
            **_measured(turn, told),
            load_before=load,
            replies=self._replies(turn, worker, texts),
        )
        self.writer.answer(answer, told["token_ids"], texts)

    def _texts(self, turn: Turn, told: dict[str, Any]) -> list[str] | None:
        """What was answered, where somebody will compare it with gold."""
        if not any(each.prompt.gold for each in turn.prompts):
            return None
        return [self.workload.cutter.text(tokens) for tokens in told["token_ids"]]

    def _replies(self, turn: Turn, worker: Worker, texts: list[str] | None) -> list[str] | None:
        """Plain answers to the follow-ups of long ones; not measured."""
        follow_ups = [each.prompt.follow_up for each in turn.prompts]
        if texts is None or not all(follow_ups):
            return None
        cutter = self.workload.cutter
        prompts = [
            cutter.tokens(chat(follow_up.replace("{answer}", text.strip())))
            for follow_up, text in zip(follow_ups, texts, strict=True)
        ]
        asked = {"prompts": prompts, "method": "plain", "max_tokens": REPLY}
        told = worker.ask(self._request(turn) | asked)
        return [cutter.text(tokens) for tokens in told["token_ids"]]

    def _worker(self, turn: Turn) -> Worker:
        name = turn.system.process
        if self.workers.starts(turn.system):
            self.watch.turn(f"starting {name} (its log: {self.workers.log_of(name)})")
        worker = self.workers.get(turn.system)
        if name not in self.announced:
            self._refuse_another_version(turn.system, worker)
            self.writer.worker(self.workers.sharing(turn.system), worker.about)
            self.announced.add(name)
        return worker

    def _refuse_another_version(self, system: System, worker: Worker) -> None:
        before = self.results.workers.get(system.name, worker.about)["versions"]
        if (now := worker.about["versions"]) != before:
            raise WorkerError(f"was measured with {before}, not {now}; name another --out")

    def _request(self, turn: Turn) -> dict[str, Any]:
        return {
            "id": f"{turn.numbers[0]}-{turn.repeat}",
            "prompts": [each.token_ids for each in turn.prompts],
            "max_tokens": self.settings.max_tokens,
            "end_tokens": [] if self.settings.ignore_eos else self.workload.end_tokens,
            "method": turn.system.method,
            "temperature": turn.temperature,
            "seeds": turn.numbers,
        }

    def _described(self, turn: Turn) -> dict[str, Any]:
        return {
            "suite": self.settings.suite,
            "question_ids": turn.numbers,
            "category": turn.category,
            "system": turn.system.name,
            "keeps": turn.system.keeps,
            "temperature": turn.temperature,
            "batch": turn.batch,
            "context": turn.context,
            "repeat": turn.repeat,
            "session": len(self.results.sessions),
            "prompt_tokens": sum(len(each.token_ids) for each in turn.prompts),
            "date": _now(),
        }


def _short(request: dict[str, Any]) -> dict[str, Any]:
    """The same with little to read and write."""
    prompts = [tokens[-WARM_UP_PROMPT:] for tokens in request["prompts"]]
    return {**request, "prompts": prompts, "max_tokens": min(WARM_UP, request["max_tokens"])}


def _measured(turn: Turn, told: dict[str, Any]) -> dict[str, Any]:
    """What a worker said, and what follows from it."""
    tokens, steps = sum(map(len, told["token_ids"])), told["steps"]
    later, prefill = tokens - turn.batch, told["prefill_seconds"]
    accepted = told.get("accepted_by_source")
    if accepted is None:
        accepted = {"lookup": later - steps} if turn.system.drafts else {}
    return {
        "tokens": tokens,
        "first_tokens": told["first_tokens"],
        "prefill_seconds": prefill,
        "decode_seconds": None if prefill is None else told["total_seconds"] - prefill,
        "total_seconds": told["total_seconds"],
        "steps": steps,
        "tokens_per_step": round(later / steps, 4) if steps else None,
        "read_tokens": told.get("read_tokens"),
        "drafted": told.get("drafted"),
        "drafted_by_source": told.get("drafted_by_source"),
        "accepted_by_source": accepted,
        "accepted_by_position": told.get("accepted_by_position"),
        "finish_reasons": told["finish_reasons"],
        "output": output_hash(told["token_ids"]),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
