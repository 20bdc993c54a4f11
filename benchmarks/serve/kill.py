"""kill -9 under load: a server with a datastore, and a process that writes caches.

Each time a server answers some streaming clients from a datastore while another process reads
documents and keeps their rows on disk (prefix files and a document cache); then both are killed.
Every file that is visible afterwards has to be sound, the store unchanged, and the next server has
to answer as the first did. One JSON line for each kill, the summary last.

    python -m benchmarks.serve.kill --kills 5 --out results/serve_kill.jsonl
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from safetensors import SafetensorError, safe_open

from benchmarks.rows import rows_file
from benchmarks.serve.client import http_client, stream
from benchmarks.serve.server import free_port, fresh_home, wait_until_ready
from benchmarks.serve.throughput import DOCUMENT, Variant, answer_all, make_requests
from graft.home import TEMPORARY
from graft.models.prefix_files import checksum

WRITER = """
import itertools, sys
import graft
from graft.decode.prepared_request import PreparedRequest
from graft.rag.document_cache import DocumentCache
model, folder = sys.argv[1:]
engine = graft.load(model, head=None, disk_cache=1 << 30)
documents = DocumentCache(engine, max_bytes=0, folder=folder)
text = "the contractor maintains every lift of the hospital and keeps a record of each visit "
few = graft.SamplingParams(max_tokens=2)
print("ready", flush=True)
for number in itertools.count():
    prompt = engine.encoder.text((f"{number} " + text) * 12)
    engine.generate(prompt, few)
    engine.remember(prompt)
    passage = engine.encoder.text(f"{number} " + 5 * text)
    prepared = documents.prepare([("head", [1, 2, 3], ""), ("passage", passage, str(number)),
                                  ("text", [4, 5], "")])
    engine.generate(PreparedRequest(graft.Request(prepared.tokens, few), prepared.rows))
    documents.flush()
"""


def sound(path: Path) -> bool:
    """Whether a cache's file is whole: every tensor is what its checksums say."""
    try:
        with safe_open(path, "pt") as opened:
            about = opened.metadata()
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        sums = {"tokens": about["text"], "rows": about.get("rows")}
        for number, value in enumerate(json.loads(about.get("checksums", "[]"))):
            sums[f"block.{number}"] = value
        return all(checksum(tensor) == sums[name] for name, tensor in tensors.items())
    except (SafetensorError, OSError, KeyError, ValueError):
        return False


def caches(folder: Path) -> dict[str, int]:
    """The files below a folder: sound, damaged and temporary ones."""
    found = Counter({"sound": 0, "damaged": 0, "temporary": 0})
    for path in folder.rglob("*"):
        if TEMPORARY in path.name:
            found["temporary"] += 1
        elif path.suffix == ".safetensors" and path.is_file():
            found["sound" if sound(path) else "damaged"] += 1
    return dict(found)


def digest(folder: Path) -> str:
    """Of all files of a store."""
    hashed = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        hashed.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return hashed.hexdigest()


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen]:
    """A process, killed at the end of the block."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


async def load_until_dead(
    url: str, bodies: list[dict], kill_after: float, kill: Callable[[], None]
) -> int:
    """Load until the server is killed; the number of running requests then."""
    under_way = 0

    async def work(client: httpx.AsyncClient, draw: random.Random) -> None:
        nonlocal under_way
        broken = None
        while broken is None:
            under_way += 1
            broken = (await stream(client, draw.choice(bodies))).error
            under_way -= 1

    async with http_client(url, None) as client:
        clients = [asyncio.create_task(work(client, random.Random(i))) for i in range(8)]
        await asyncio.sleep(kill_after)
        before = under_way
        kill()
        await asyncio.gather(*clients)
    return before


async def ask(url: str, bodies: list[dict]) -> list[str]:
    """The answers one after the other."""
    async with http_client(url, None) as client:
        _, answers = await answer_all(Variant("the server", client, {}), bodies, 1)
    return [each.text for each in answers]


def killed_once(options: argparse.Namespace, folder: Path, environment: dict[str, str]) -> dict:
    """Start, load, kill, look."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    graft = [sys.executable, "-m", "graft"]
    server = [*graft, "serve", options.model, "--dtype", "fp32", "--head", "none", "--port",
              str(port), "--draft", f"auto+store:{folder / 'store'}"]  # fmt: skip
    writer = [sys.executable, "-c", WRITER, options.model, str(folder / "documents")]
    bodies = make_requests(3, 0, 24)
    began = time.monotonic()
    with running(writer, environment) as writing, running(server, environment) as serving:
        wait_until_ready(url, serving)
        started = time.monotonic() - began
        answers = asyncio.run(ask(url, bodies))
        assert writing.stdout.readline() == "ready\n"

        def kill() -> None:
            serving.send_signal(signal.SIGKILL)
            writing.send_signal(signal.SIGKILL)

        wait = random.Random(options.seed).uniform(0.5, options.seconds)
        under_way = asyncio.run(load_until_dead(url, bodies, wait, kill))
    checked = subprocess.run(
        [*graft, "index", "info", str(folder / "store"), "--check"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {
        "seconds_to_start": round(started, 1),
        "under_way_when_killed": under_way,
        "files": caches(folder),
        "store": digest(folder / "store"),
        "store_check": checked.returncode,
        "answers": hashlib.sha256(json.dumps(answers).encode()).hexdigest(),
    }


def run(options: argparse.Namespace) -> int:
    """All kills; 0 if nothing was hurt."""
    with tempfile.TemporaryDirectory() as name, rows_file("serve_kill", options) as file:
        folder = Path(name)
        environment = {**os.environ, "GRAFT_HOME": str(fresh_home(folder))}
        subprocess.run(
            [sys.executable, "-m", "graft", "index", "build", str(folder / "store"), "--model",
             options.model, str(DOCUMENT)],
            env=environment, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        lines = []
        for number in range(options.kills + 1):  # the last start shows what the last kill left
            options.seed = number
            lines.append({"kill": number, **killed_once(options, folder, environment)})
            print(lines[-1], flush=True)
            file.row(lines[-1])
    hurt = {
        "damaged_files": sum(line["files"]["damaged"] for line in lines),
        "store_changed": len({line["store"] for line in lines}) - 1,
        "store_checks_failed": sum(bool(line["store_check"]) for line in lines),
        "answers_changed": len({line["answers"] for line in lines}) - 1,
    }
    print({"kills": len(lines), "sound_files": lines[-1]["files"]["sound"], **hurt})
    return int(any(hurt.values()) or not lines[-1]["files"]["sound"])


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6, help="of load at most")
    parser.add_argument("--out", type=Path)
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
