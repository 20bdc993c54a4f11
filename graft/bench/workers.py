"""All worker processes of a run."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from graft.bench.settings import Settings
from graft.bench.systems import WALK, System, preset_of
from graft.bench.worker import PEERS, Worker, environment, interpreter
from graft.models.checkpoints.pretrained import locate

PEER_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Idle:
    """Workers that one run leaves to the next, which goes on with those it would start alike.

    Loading a model takes longer than many a file of answers. What nobody goes on with ends before
    another is started: two models may not fit the device.
    """

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def __enter__(self) -> "Idle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def has(self, command: list[str]) -> bool:
        """Whether one was started by this command."""
        return any(worker.command == command for worker in self._workers)

    def take(self, command: list[str]) -> Worker | None:
        """One that was started by this command; if none was, all of them end."""
        for place, worker in enumerate(self._workers):
            if worker.command == command:
                return self._workers.pop(place)
        self.close()
        return None

    def leave(self, worker: Worker) -> None:
        """Until the next run."""
        self._workers.append(worker)

    def close(self) -> None:
        """Let all of them end."""
        while self._workers:
            self._workers.pop().close()


@dataclass(slots=True)
class Workers:
    """The processes of a run, by name, started on first use or taken over from an earlier run;
    `failed` names those that died."""

    settings: Settings
    model: Path
    room: int
    out: Path
    dtype: str
    device: str
    idle: Idle | None = None
    running: dict[str, Worker] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def get(self, system: System) -> Worker:
        """A system's worker."""
        name = system.process
        if name not in self.running:
            command = self._command(system)
            worker = self.idle.take(command) if self.idle else None
            if worker is None:
                worker = Worker(command, self.log_of(name))
                worker.start(environment(system))
            self.running[name] = worker
        return self.running[name]

    def starts(self, system: System) -> bool:
        """Whether a process has to be started for it."""
        if system.process in self.running:
            return False
        return self.idle is None or not self.idle.has(self._command(system))

    def log_of(self, name: str) -> Path:
        """Where a worker's messages go: beside the result file."""
        return self.out.with_suffix(f".{name}.log")

    def sharing(self, system: System) -> list[str]:
        """Names of the systems that a worker serves."""
        return [each.name for each in self.settings.systems if each.process == system.process]

    def fail(self, system: System) -> None:
        """Give a dead worker's systems no more turns."""
        name = system.process
        self.failed.add(name)
        if worker := self.running.pop(name, None):
            worker.kill()

    def close(self) -> None:
        """Let all of them end, or leave them to the next run."""
        while self.running:
            worker = self.running.popitem()[1]
            if self.idle:
                self.idle.leave(worker)
            else:
                worker.close()

    def kill(self) -> None:
        """End all of them at once."""
        for worker in self.running.values():
            worker.kill()

    def _graft_options(self, system: System) -> dict[str, object]:
        """What peers do not have. A rule of its own is loaded with a preset that it fits."""
        settings = self.settings
        given: dict[str, object] = {"--head": settings.head}
        if settings.draft_model:
            given["--draft-model"] = settings.draft_model
        if settings.context_length:
            given["--context-length"] = settings.context_length
        if settings.load_options:
            given["--load-options"] = json.dumps(dict(settings.load_options))
        if system.verifier != WALK:
            verifier, _, strength = system.verifier.partition(":")
            given |= {"--draft": preset_of(system.method), "--verifier": verifier}
            given |= {"--eta": strength} if strength else {}
        return given

    def _peer_options(self, system: System) -> dict[str, object]:
        """The smaller model of those that draft with one."""
        if system.engine == "hf" and "hf-assisted" in self.settings.peers and system.per_request:
            return {"--draft-model": locate(self.settings.draft_model).folder}
        if system.name == "llama-draft":
            return {"--draft-model": self.settings.draft_gguf}
        return {}

    def _command(self, system: System) -> list[str]:
        settings, engine = self.settings, system.engine
        dtype = self.dtype if engine == "graft" else PEER_DTYPES[self.dtype]
        model = settings.gguf if engine == "llama" else self.model
        given = {
            "--model": model,
            "--dtype": dtype,
            "--device": self.device,
            "--threads": settings.threads,
            "--max-model-len": self.room,
            "--batch": max(settings.batches) if system.batches else 1,
        }
        given |= self._graft_options(system) if engine == "graft" else self._peer_options(system)
        if not system.per_request:
            given["--method"] = system.method
        command = [interpreter(engine, settings.interpreters), str(PEERS / f"{engine}_peer.py")]
        command += [str(word) for pair in given.items() for word in pair]
        for peer in self.sharing(system):
            command += settings.peer_options.get(peer, ())
        return command
