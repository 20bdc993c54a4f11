"""Graft worker: `method` is the `draft` option (plain, auto, ...)."""

import time

import protocol

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}  # Graft's names


def main() -> None:
    """Load the model and answer until stdin closes."""
    chosen = protocol.parser(__doc__).parse_args()
    channel = protocol.private_stdout()
    import torch

    import graft

    torch.set_num_threads(chosen.threads)
    engine = graft.load(chosen.model, dtype=DTYPES[chosen.dtype])
    settings = {name: getattr(chosen, name) for name in ("dtype", "threads")}
    about = {"graft": graft.__version__} | protocol.versions("torch") | {"settings": settings}
    protocol.serve(lambda request: answer(engine, request), channel, about)


def answer(engine: object, request: dict) -> dict:
    """Greedy, timed from outside like the other peers."""
    import graft

    start = time.perf_counter()
    sampling = graft.SamplingParams(temperature=0.0, max_tokens=request["max_tokens"])
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
