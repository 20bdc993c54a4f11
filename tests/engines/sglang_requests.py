"""Requests to a real SGLang engine on a CPU: `python sglang_requests.py FILE`.

The file has the engine's options and requests, each with a time at which it starts, in seconds.
What they came to goes to standard output as JSON.
"""

import asyncio
import json
import sys
from pathlib import Path


async def answered(engine, asked):
    """Token ids, their log probabilities and SGLang's figures of one request."""
    await asyncio.sleep(asked.get("start", 0))
    stream = await engine.async_generate(
        input_ids=asked["prompt"],
        sampling_params=asked["sampling"],
        return_logprob=asked.get("logprobs", False),
        stream=True,
    )
    last = None
    async for part in stream:
        last = part
        if asked.get("stop_after") and len(part["output_ids"]) >= asked["stop_after"]:
            engine.tokenizer_manager.abort_request(part["meta_info"]["id"])
    about = last["meta_info"]
    return {
        "tokens": last["output_ids"],
        "logprobs": [value for value, *_ in about.get("output_token_logprobs") or []],
        "accepted": about.get("spec_num_correct_drafts", 0),
        "steps": about.get("spec_verify_ct", 0),
    }


async def all_answered(engine, requests):
    return await asyncio.gather(*(answered(engine, each) for each in requests))


if __name__ == "__main__":
    import sglang

    job = json.loads(Path(sys.argv[1]).read_text())
    engine = sglang.Engine(
        device="cpu",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        grammar_backend="none",
        dtype="float32",
        disable_radix_cache=True,
        disable_cuda_graph=True,
        skip_tokenizer_init=True,
        mem_fraction_static=0.5,
        log_level="warning",
        **job["options"],
    )
    loop = asyncio.get_event_loop()
    found = loop.run_until_complete(all_answered(engine, job["requests"]))
    sys.stdout.write(f"ANSWERS {json.dumps(found)}\n")
    sys.stdout.flush()
    engine.shutdown()
