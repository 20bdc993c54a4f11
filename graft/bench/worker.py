"""Worker processes of other engines: started when first used, stopped while another one works."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import graft
from graft.bench.variants import Variant
from graft.errors import GraftError

SCRIPTS = Path(__file__).parent / "engines"
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # as torch names them
EXIT_SECONDS = 20  # for a worker to end by itself


class WorkerError(GraftError):
    """A worker process ended."""


class RequestError(GraftError):
    """A worker could not answer a request; it still runs."""


class Backend(Protocol):
    """Answers requests of engines/protocol.py; `warm` holds the kinds it has answered before."""

    warm: set[object]
    about: dict[str, Any]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The fields that engines/protocol.py names."""


@dataclass(slots=True)
class Worker:
    """A process that answers requests over its pipes.

    Between requests it is stopped (SIGSTOP): some engines keep a core busy while they wait.
    """

    command: list[str]
    log: Path
    warm: set[object] = field(default_factory=set)
    about: dict[str, Any] = field(default_factory=dict)
    process: Any = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the process and wait until it is ready."""
        with self.log.open("w") as log:
            try:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, **environment},
                    process_group=0,  # Ctrl-C reaches this process alone
                )
            except OSError as error:
                raise WorkerError(f"{self.command[0]} cannot be run ({error.strerror})") from error
        try:
            self.about = self._read()["ready"]
        except BaseException:
            self.kill()
            raise
        self._signal(signal.SIGSTOP)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Continue the process, send one request, wait for its answer, stop it again."""
        try:
            self._signal(signal.SIGCONT)
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self._read()
            self._signal(signal.SIGSTOP)
        except OSError as error:  # it ended between two requests
            raise self._ended() from error
        if "error" in answer:
            raise RequestError(" ".join(answer["error"].split()))
        return answer

    def close(self) -> None:
        """Close stdin, so that the process ends; kill it where it does not."""
        if self.process is None or self.process.poll() is not None:
            return
        try:
            self._signal(signal.SIGCONT)
            self.process.stdin.close()
            self.process.wait(timeout=EXIT_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()

    def kill(self) -> None:
        """Kill the process and its children."""
        try:
            self._signal(signal.SIGKILL)
        except OSError:  # it has ended already
            pass
        self.process.wait()

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line.endswith("\n"):
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> WorkerError:
        code = self.process.wait()
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
        lines = [line.strip() for line in self.log.read_text(errors="replace").split("\n")]
        last = next((f" ({line[:200]})" for line in reversed(lines) if line), "")
        return WorkerError(f"ended with {ended}{last}; see {self.log}")

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What workers are started with; `pythons` are interpreters by engine, this one by default."""

    model: Path
    dtype: str
    device: str
    threads: int
    max_model_len: int
    batch: int = 1
    draft_model: Path | None = None
    gguf: Path | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)  # arguments by variant
    logs: Path = Path()


def start_worker(variant: Variant, options: WorkerOptions) -> Worker:
    """A running worker for a variant and those that share its process."""
    worker = Worker(_command(variant, options), options.logs / f"{variant.process}.log")
    # vLLM with Graft in it imports this Graft, installed or not
    here = [str(Path(graft.__file__).parents[1])] if variant.method.startswith("graft") else []
    path = os.pathsep.join(filter(None, [*here, os.environ.get("PYTHONPATH", "")]))
    worker.start({"PYTHONPATH": path} if here else {})
    return worker


def computes_in(engine: str, dtype: str) -> bool:
    """Whether another engine computes in this dtype; llama.cpp reads a GGUF file as it is."""
    return dtype in DTYPES or (dtype == "gguf" and engine.startswith("llama.cpp"))


def _command(variant: Variant, options: WorkerOptions) -> list[str]:
    given: dict[str, object] = {
        "--model": options.gguf if variant.engine == "llama_cpp" else options.model,
        "--dtype": DTYPES.get(options.dtype, options.dtype),
        "--device": options.device,
        "--threads": options.threads,
        "--max-model-len": options.max_model_len,
        "--batch": options.batch if variant.batches else 1,
    }
    if not variant.per_request:
        given["--method"] = variant.method
    if options.draft_model and variant.process == "transformers":
        given["--draft-model"] = options.draft_model
    python = options.pythons.get(variant.engine, sys.executable)
    words = [str(word) for pair in given.items() for word in pair]
    script = SCRIPTS / f"{variant.engine}_worker.py"
    return [python, str(script), *words, *options.extra.get(variant.name, ())]
