"""Which peers can be measured here: what their pythons have, asked without importing it."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace

from graft.bench.asked import Asked
from graft.bench.systems import OPTIONS, PEERS, lacks
from graft.bench.worker import environment, interpreter
from graft.errors import InputError

PACKAGES = {"hf": "transformers", "vllm": "vllm", "llama": "llama_cpp"}
MORE = {"vllm-suffix": "arctic_inference", "vllm-graft": "graft.integrations.vllm"}
ASK = "import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)"
PATIENCE = 60  # seconds


def interpreters(words: list[str]) -> dict[str, str]:
    """What `--peer-python ENGINE=PATH` says."""
    found = {}
    for word in words:
        engine, _, path = word.partition("=")
        if engine not in PACKAGES or not path:
            raise InputError(
                f"--peer-python is ENGINE=PATH with one of {', '.join(PACKAGES)}, not {word!r}"
            )
        found[engine] = path
    return found


def choose(asked: Asked, named: Mapping[str, str]) -> tuple[Asked, list[str]]:
    """The same with the peers that can run, of those named or of all; a line for every other."""
    wanted = list(PEERS) if asked.peers is None else asked.peers.split(",")
    able, lines = [], []
    for name in wanted:
        if name not in PEERS:
            raise InputError(f"unknown peer {name!r}; choose from {', '.join(PEERS)}")
        if why := missing(name, asked, named):
            lines.append(f"{name} is left out: {why}")
        else:
            able.append(name)
    pythons = {f"python_{engine}": path for engine, path in named.items()}
    return replace(asked, peers=",".join(able), **pythons), lines


def missing(name: str, asked: Asked, named: Mapping[str, str]) -> str | None:
    """Why a peer cannot be measured, or None."""
    given = frozenset(each for each in OPTIONS if getattr(asked, each))
    if lacking := lacks(name, given):
        return f"it needs {lacking}"
    engine = PEERS[name].engine
    python = named.get(engine) or getattr(asked, f"python_{engine}")
    pythons = {engine: python} if python else {}
    if lacking := no_python(engine, pythons):
        return lacking
    python = interpreter(engine, pythons)
    for package in filter(None, (PACKAGES[engine], MORE.get(name))):
        if not _has(python, package, environment(PEERS[name])):
            return f"{python} has no {package}"
    return None


def no_python(engine: str, named: Mapping[str, str]) -> str | None:
    """Why an engine cannot be started: only `hf` may run in our own environment."""
    if engine == "hf" or named.get(engine):
        return None
    return f"it needs --peer-python {engine}=PATH, the python of its environment"


def _has(python: str, package: str, environment: Mapping[str, str]) -> bool:
    try:
        told = subprocess.run(
            [python, "-c", ASK, package],
            capture_output=True,
            timeout=PATIENCE,
            env={**os.environ, **environment},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.returncode == 0
