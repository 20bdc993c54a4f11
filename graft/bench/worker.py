"""Worker processes: one per engine, started when first needed, stopped while another works."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graft
from graft.bench.systems import System
from graft.errors import GraftError

PEERS = Path(__file__).parent / "peers"
PATIENCE = 20  # seconds a worker has to end by itself


class WorkerError(GraftError):
    """A worker that is gone; `reason` is the last line it wrote."""


class RequestError(GraftError):
    """A request that a worker could not answer; the worker lives."""


@dataclass(slots=True)
class Worker:
    """A process that answers requests; peers/protocol.py is what is said over its pipes.

    Between requests it is stopped (SIGSTOP): some engines keep a core busy while they wait.
    """

    command: list[str]
    log: Path
    warm: set[object] = field(default_factory=set)  # kinds of requests answered before
    about: dict[str, Any] = field(default_factory=dict)
    process: Any = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the process and wait until it is ready, however long that takes."""
        with self.log.open("w") as log:
            try:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, **environment},
                    process_group=0,  # so Ctrl-C reaches the runner alone
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
        """Wake the worker, send one request, wait for its answer."""
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
        """Let the process end by itself, as its stdin closes; else end it."""
        if self.process is None or self.process.poll() is not None:
            return
        try:
            self._signal(signal.SIGCONT)
            self.process.stdin.close()
            self.process.wait(timeout=PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()

    def kill(self) -> None:
        """End the process and its children at once."""
        try:
            self._signal(signal.SIGKILL)
        except OSError:  # it was gone already
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
        return WorkerError(f"ended with {ended}{self._last_words()}; see {self.log}")

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").split("\n")
        words = [line.strip() for line in lines if line.strip()]
        return f" ({words[-1][:200]})" if words else ""

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)


def interpreter(engine: str, named: Mapping[str, str]) -> str:
    """The python that runs an engine's worker: this one for Graft, the one named for peers."""
    return sys.executable if engine == "graft" else named.get(engine) or sys.executable


def environment(system: System) -> dict[str, str]:
    """Graft's worker, and vLLM with Graft in it, import the same Graft, installed or not."""
    if "graft" not in (system.engine, system.method):
        return {}
    here = str(Path(graft.__file__).parents[1])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}
