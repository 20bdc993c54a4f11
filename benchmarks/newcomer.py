"""A newcomer's first hour: the commands and snippets of docs/quickstart.md, as they are written.

The tree is cloned, installed with pip into a new virtual environment, and used with an empty home.
Every `graft run` is typed twice (cold, warm), the first one twice more with a server; then the
Python snippets run, those of clients against `graft serve`. A row has the exit status, the seconds
until the first character of the answer and in total. Commands that need what is not here (a GPU,
Docker, a model of the hub) are listed, not run.

    python -m benchmarks.newcomer --gguf FILE.gguf --out results/newcomer.jsonl
"""

import argparse
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.rows import rows_file
from benchmarks.serve.server import wait_until_ready
from graft.bench.result_file import ResultFile

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEEDS = {"Qwen/": "a GPU and the hub", "docker": "Docker", "FILE.gguf": "a GGUF file"}
CLIENTS = ("openai", "langchain-openai", "llama-index-llms-openai-like")
PORT = 8000  # the page's
URL = f"http://127.0.0.1:{PORT}"


def blocks(page: Path) -> tuple[list[str], list[str]]:
    """The commands and the Python snippets of a page."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    lines = [line for kind, text in found if not kind for line in text.splitlines()]
    return lines, [text for kind, text in found if kind == "python"]


def missing(command: str, gguf: Path | None) -> str | None:
    """What a command needs and is not here."""
    wanted = (need for word, need in NEEDS.items() if word in command)
    return next((need for need in wanted if not (need == NEEDS["FILE.gguf"] and gguf)), None)


class Newcomer:
    """A clone with an environment of its own and an empty home."""

    def __init__(self, folder: Path, file: ResultFile) -> None:
        self.clone, self.file = folder / "clone", file
        environment = folder / "environment"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GRAFT_")}
        for name in ("PYTHONPATH", "XDG_CACHE_HOME", "HF_HOME", "VIRTUAL_ENV"):
            kept.pop(name, None)
        path = f"{environment / 'bin'}:{os.environ['PATH']}"
        self.variables = {**kept, "HOME": str(folder / "home"), "PATH": path}
        (folder / "home").mkdir()
        subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(self.clone)],
                       check=True)  # fmt: skip
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)

    def type(self, command: str, **about: Any) -> dict[str, Any]:  # noqa: ANN401 (of the row)
        """Run a command of a shell; the row."""
        words = ["bash", "-c", command]
        began = time.monotonic()
        process = subprocess.Popen(
            words, cwd=self.clone, env=self.variables, text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.monotonic() - began
        text = first + process.stdout.read()
        row = {
            "command": command,
            "status": process.wait(),
            "first_seconds": round(seconds, 1) if text else None,
            "seconds": round(time.monotonic() - began, 1),
            "text": text[:200],
            **about,
        }
        self.file.row(row)
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
        return row

    @contextmanager
    def serving(self, command: str) -> Iterator[None]:
        """A server, ended with the block."""
        with socket.socket() as taken:
            if taken.connect_ex(("127.0.0.1", PORT)) == 0:
                raise SystemExit(f"port {PORT} is in use; end the server there first")
        began = time.monotonic()
        process = subprocess.Popen(shlex.split(command), cwd=self.clone, env=self.variables)
        try:
            wait_until_ready(URL, process)
            seconds = round(time.monotonic() - began, 1)
            self.file.row({"command": command, "status": 0, "first_seconds": seconds})
            yield
        finally:
            process.terminate()
            process.wait(60)


def run(newcomer: Newcomer, gguf: Path | None) -> int:
    """Everything; the number of commands that failed."""
    page = newcomer.clone / "docs" / "quickstart.md"
    commands, snippets = blocks(page)
    rows = [newcomer.type("pip install -q '.[server,formats]'", kind="install")]
    typed = []
    for line in commands:
        command = line.split("  #")[0].strip()
        if need := missing(command, gguf):
            newcomer.file.row({"command": command, "status": None, "needs": need})
        elif command.startswith("graft run"):
            typed.append(command.replace("FILE.gguf", str(gguf)))
    for command in typed:
        rows += [newcomer.type(command, kind=kind) for kind in ("cold", "warm")]
    [server] = [line for line in commands if line == "graft serve smollm2-135m"]
    rows.append(newcomer.type(f"pip install -q {' '.join(CLIENTS)}", kind="install"))
    with newcomer.serving(server):
        kinds = "with a server", "with a server, again"
        rows += [newcomer.type(typed[0], kind=kind) for kind in kinds]
        for number, snippet in enumerate(snippets):
            file = newcomer.clone / f"snippet{number}.py"
            file.write_text(snippet, encoding="utf-8")
            rows.append(newcomer.type(f"python -u {file.name}", kind="snippet"))
    return sum(bool(row["status"]) for row in rows)


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gguf", type=Path, help="a file for the commands with FILE.gguf")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gguf, options.gguf = options.gguf, None
    with tempfile.TemporaryDirectory() as name, rows_file("newcomer", options) as file:
        sys.exit(bool(run(Newcomer(Path(name), file), gguf)))


if __name__ == "__main__":
    main()
