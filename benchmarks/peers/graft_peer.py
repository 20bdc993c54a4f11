"""Graft worker: `method` is the `draft` option (plain, auto, ...)."""

import time
from importlib.metadata import PackageNotFoundError

import protocol


def main() -> None:
    """Load the model and answer until stdin closes."""
    chosen = protocol.parser(__doc__).parse_args()
    channel = protocol.private_stdout()
    import torch

    import graft

    torch.set_num_threads(chosen.threads)
    engine = graft.load(chosen.model, dtype=chosen.dtype)
    settings = {name: getattr(chosen, name) for name in ("dtype", "threads")}
    about = installed() | {"settings": settings}
    protocol.serve(lambda request: answer(engine, request), channel, about)


def installed() -> dict[str, str]:
    """Versions; Graft itself may run from a checkout, without package metadata."""
    try:
        return protocol.versions("graft", "torch", "transformers")
    except PackageNotFoundError:
        return {"graft": "checkout"} | protocol.versions("torch", "transformers")


def answer(engine: object, request: dict) -> dict:
    """Greedy, timed from outside like the other peers; Graft's own account rides along."""
    import graft

    start = time.perf_counter()
    sampling = graft.SamplingParams(max_tokens=request["max_tokens"])
    stream = engine.stream(request["prompt_token_ids"], sampling, draft=request["method"])
    first_at = None
    for _ in stream:
        if first_at is None:
            first_at = time.perf_counter()
    end = time.perf_counter()
    result = stream.result
    return {
        "token_ids": list(result.token_ids),
        "prefill_seconds": (first_at or end) - start,
        "total_seconds": end - start,
        "tokens": len(result.token_ids),
    }


if __name__ == "__main__":
    main()
