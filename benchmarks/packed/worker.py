"""One engine in its own process: `worker.py ENGINE FILE THREADS TOKENS`.

Every line of stdin is "prefill N" or "decode N"; the answer is JSON with seconds of the wall clock,
seconds of all threads and the peak memory. Run by the interpreter that has the engine.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

PROMPT = [10 + 37 * i % 971 for i in range(4096)]  # any tokens: speed does not depend on them


def llama(file: str, threads: int, tokens: int) -> tuple[Callable, Callable]:
    """llama.cpp through llama-cpp-python."""
    from llama_cpp import Llama

    model = Llama(
        file, n_ctx=tokens, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def prefill(count: int) -> None:
        model.reset()
        model.eval(PROMPT[:count])

    def decode(count: int) -> None:
        for token in PROMPT[:count]:
            model.eval([token])

    return prefill, decode


def graft(file: str, threads: int, tokens: int) -> tuple[Callable, Callable]:
    """Graft's model without an engine around it."""
    import torch

    from graft.models.load import load_model

    torch.set_num_threads(threads)
    model = load_model(file, device="cpu").model
    extents = [model.open(tokens)]

    def prefill(count: int) -> None:
        model.close(extents.pop())
        extents.append(model.open(tokens))
        model.prefill(extents[0], PROMPT[:count])

    def decode(count: int) -> None:
        for token in PROMPT[:count]:
            model.prefill_chunk(extents[0], [token])

    return prefill, decode


def main() -> None:
    """Answer until stdin ends."""
    engine, file, threads, tokens = sys.argv[1:]
    made = {"llama.cpp": llama, "graft": graft}[engine](file, int(threads), int(tokens))
    work = dict(zip(("prefill", "decode"), made, strict=True))
    work["prefill"](8)
    work["decode"](2)
    for line in sys.stdin:
        name, count = line.split()
        wall, threads_ = time.perf_counter(), time.process_time()
        work[name](int(count))
        answer = {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - threads_,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "now_mb": _resident(),
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
