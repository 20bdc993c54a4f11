"""Plain decoding of Graft and other engines on one GPU, in turns: time of a step and of prefill.

    python -m benchmarks.decode.plain_steps --model FOLDER --vllm-python vllm/bin/python
    python -m benchmarks.decode.plain_steps --model llama-8b,gemma-3-4b,qwen3-30b-a3b
    python -m benchmarks.decode.plain_steps --model FOLDER \
        --engines vllm,graft,transformers-eager,transformers-sdpa,transformers-flash

A model is a checkpoint's folder, or a name of `shapes`: then weights are random. All engines run it
in bf16, each in a process of its own, and answer the same random token ids, cell by cell:
CONTEXTxBATCH. A cell is timed with one token and with `--tokens` more, twice each; the shorter
times count. So captures and compilation are not part of it. The other engines of all models start
together; then Graft's, one by one: it measures products when it loads.

The engines `transformers-*` are the baselines that papers ran against: `generate` without CUDA
graphs, with eager attention, torch's SDPA or the package flash-attn.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.decode.shapes import SIZES, random_engine, write_config
from graft.bench.engines import protocol
from graft.errors import GraftError

CELLS = "2048x1,2048x16,2048x64,8192x16,32768x1,32768x4,131072x1"
REPEATS = 2
SPARE = 8  # tokens of a context that stay free
EAGER_CHUNK = 256  # prompt tokens at once: eager attention keeps the weights of all pairs
ATTENTION = {
    "transformers-eager": "eager",
    "transformers-sdpa": "sdpa",
    "transformers-flash": "flash_attention_2",
}

Generate = Callable[[list[list[int]], int], object]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engines load: a checkpoint, and how much KV cache."""

    model: str
    context: int
    batch: int
    kv_bytes: int


def main() -> None:
    """Start a worker for each engine, then let them take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help=f"folders, or {', '.join(SIZES)}")
    parser.add_argument("--engines", default="vllm,graft", help=", ".join(ENGINES))
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter with vLLM")
    parser.add_argument("--transformers-python", default=sys.executable)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--kv-gib", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.engines.split(",")) - set(ENGINES):
        parser.error(f"unknown engine {unknown.pop()!r}; choose from {', '.join(ENGINES)}")
    cells = [tuple(map(int, cell.split("x"))) for cell in options.cells.split(",")]
    if options.worker:
        context, batch = (max(values) for values in zip(*cells, strict=True))
        name, model = options.worker.split(":", 1)
        loaded = EngineOptions(model, context, batch, int(options.kv_gib * 2**30))
        serve(ENGINES[name], loaded, options.tokens)
    else:
        compare(options, cells)


def compare(options: argparse.Namespace, cells: list[tuple[int, ...]]) -> None:
    """A row for each cell and engine."""
    from benchmarks.rows import rows_file  # vLLM's interpreter need not have all of Graft
    from graft.bench.worker import Worker

    pythons = dict.fromkeys(ATTENTION, options.transformers_python)
    pythons |= {"vllm": options.vllm_python, "graft": sys.executable}
    command = ["-m", "benchmarks.decode.plain_steps", *sys.argv[1:], "--worker"]
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = {
            (model, name): Worker(
                [pythons[name], *command, f"{name}:{model}"], logs / f"{number}-{name}.log"
            )
            for number, model in enumerate(options.model.split(","))
            for name in options.engines.split(",")
        }
        for worker in workers.values():
            stack.callback(worker.close)
        together = [worker for (_, name), worker in workers.items() if name != "graft"]
        with ThreadPoolExecutor(len(together) or 1) as threads:
            list(threads.map(lambda worker: worker.start({}), together))
        for (_, name), worker in workers.items():
            if name == "graft":
                worker.start({})
        for (model, name), worker in workers.items():
            print(model, name, worker.about, flush=True)
        file = stack.enter_context(rows_file("steps", options))
        for model in options.model.split(","):
            for context, batch in cells:
                for name in options.engines.split(","):
                    cell = {"context": context, "batch": batch}
                    try:
                        answer = workers[model, name].ask({"id": name, **cell})
                    except GraftError as error:  # such as out of memory
                        answer = {"error": str(error)}
                    row = {"model": Path(model).name, "engine": name, **cell, **answer}
                    print(json.dumps(row), flush=True)
                    file.row({key: value for key, value in row.items() if key != "id"})


def serve(load: Callable[[EngineOptions], Generate], options: EngineOptions, tokens: int) -> None:
    """A worker: time the cells that it is asked for."""
    channel = protocol.private_stdout()
    started = time.perf_counter()
    generate = load(options)
    ready = {"load_seconds": round(time.perf_counter() - started, 1)}
    protocol.serve(
        lambda cell: timed(generate, cell["context"], cell["batch"], tokens), channel, ready
    )


def timed(generate: Generate, context: int, batch: int, tokens: int) -> dict[str, float]:
    """Prefill and a step of one cell."""
    draw = random.Random(7)
    prompts = [
        [draw.randrange(1000, 40000) for _ in range(context - tokens - SPARE)] for _ in range(batch)
    ]
    times = [
        [_seconds(generate, prompts, count) for count in (1, tokens + 1)] for _ in range(REPEATS)
    ]
    prefill, whole = (min(values) for values in zip(*times, strict=True))
    step = 1000 * (whole - prefill) / tokens
    return {"prefill_s": round(prefill, 4), "ms_per_step": round(step, 3)}


def graft_engine(options: EngineOptions) -> Generate:
    """Graft's plain decoding."""
    import graft

    if options.model in SIZES:
        engine = random_engine(options.model, options.context, options.batch, options.kv_bytes)
    else:
        engine = graft.load(
            options.model,
            dtype="bf16",
            draft="plain",
            prefix_cache=0,
            max_batch=options.batch,
            context_length=options.context,
            kv_cache=options.kv_bytes,
        )

    def generate(prompts: list[list[int]], tokens: int) -> None:
        engine.generate(prompts, graft.SamplingParams(max_tokens=tokens, ignore_eos=True))

    return generate


def vllm_engine(options: EngineOptions) -> Generate:
    """vLLM's, with its defaults apart from the prefix cache."""
    protocol.without_flashinfer()
    from vllm import LLM, SamplingParams

    folder, weights = options.model, "auto"
    if options.model in SIZES:
        folder, weights = tempfile.mkdtemp(), "dummy"
        write_config(options.model, Path(folder))
    engine = LLM(
        folder,
        load_format=weights,
        dtype="bfloat16",
        max_model_len=options.context,
        max_num_seqs=options.batch,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        gpu_memory_utilization=0.1,  # of which the next line takes no notice
        kv_cache_memory_bytes=options.kv_bytes,
    )

    def generate(prompts: list[list[int]], tokens: int) -> None:
        engine.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False),
            use_tqdm=False,
        )

    return generate


def transformers_engine(attention: str) -> Callable[[EngineOptions], Generate]:
    """transformers' `generate` with that attention."""

    def load(options: EngineOptions) -> Generate:
        import torch
        from transformers import AutoModelForCausalLM

        device = "cuda" if torch.cuda.is_available() else "cpu"
        network = AutoModelForCausalLM.from_pretrained(
            options.model, dtype=torch.bfloat16, attn_implementation=attention
        ).to(device)
        more = {"prefill_chunk_size": EAGER_CHUNK} if attention == "eager" else {}

        def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
            given = torch.tensor(prompts, device=device)
            found = network.generate(
                given,
                attention_mask=torch.ones_like(given),
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
                disable_compile=True,
                **more,
            )
            return found[:, given.shape[1] :].tolist()

        return generate

    return load


ENGINES: dict[str, Callable[[EngineOptions], Generate]] = {
    "graft": graft_engine,
    "vllm": vllm_engine,
    **{name: transformers_engine(attention) for name, attention in ATTENTION.items()},
}


def _seconds(generate: Generate, prompts: list[list[int]], tokens: int) -> float:
    started = time.perf_counter()
    generate(prompts, tokens)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
