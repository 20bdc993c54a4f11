"""pass@k of programs (Chen et al. 2021): a function that a model wrote, against the task's tests.

A program runs in a process of its own (`guarded.py`): an empty folder, no environment, limits on
time, memory and file sizes, no network where the kernel lets us take it away, no other processes.
That stops accidents, not an attacker: run what you do not trust in a container.
"""

import math
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

GUARD = Path(__file__).with_name("guarded.py")
SECONDS = 3.0  # as HumanEval's own harness gives
FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The unbiased estimator: 1 - C(samples - correct, k) / C(samples, k)."""
    if samples - correct < k:
        return 1.0
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def passed(answer: str, references: Sequence[str]) -> float:
    """pass@1 of one answer; `references` are a solution, the prompt, its tests, the name."""
    _, prompt, test, name = references
    return pass_at_k(1, int(runs(program(answer, prompt, test, name))), 1)


def program(answer: str, prompt: str, test: str, name: str) -> str:
    """The prompt, whose imports and resources count, what was answered, and the tests.

    An answer that does not define the function continues the prompt, as a base model would.
    """
    blocks = FENCED.findall(answer)
    defining = [block for block in blocks if re.search(rf"^\s*def {name}\b", block, re.MULTILINE)]
    code = (defining or blocks or [answer])[0]
    seam = "\n" if defining or re.search(rf"^def {name}\b", code, re.MULTILINE) else ""
    return f"{prompt}{seam}{code}\n{test}\ncheck({name})\n"


@cache
def runs(source: str) -> bool:
    """Whether a program comes to its end within its limits."""
    secret = secrets.token_hex(16)  # written at the end, so that an early exit does not pass
    with tempfile.TemporaryDirectory(prefix="graft-code-") as folder:
        file = Path(folder) / "program.py"
        file.write_text(source, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-I", str(GUARD), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            written, _ = process.communicate(secret.encode(), timeout=SECONDS)
        except subprocess.TimeoutExpired:
            written = b""
        finally:
            _end(process)
    return written.decode(errors="replace") == secret


def _end(process: subprocess.Popen) -> None:
    """With everything it may have started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()
