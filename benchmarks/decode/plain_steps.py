"""Plain decoding of Graft and other engines on one GPU, in turns: time of a step and of prefill.

    python -m benchmarks.decode.plain_steps --model FOLDER --vllm-python vllm/bin/python
    python -m benchmarks.decode.plain_steps --model llama-8b,gemma-3-4b,qwen3-30b-a3b
    python -m benchmarks.decode.plain_steps --model FOLDER \
        --engines vllm,graft,transformers-eager,transformers-sdpa,transformers-flash

A model is a checkpoint's folder, or a name of `shapes`: then weights are random. All engines run it
in bf16, each in a process of its own, and answer the same random token ids, cell by cell:
CONTEXTxBATCH, for each model a list of its own if lists are separated by `;`. A cell is answered
once untimed, for captures and compilation, then with one token and with `--tokens` more. The other
engines of all models start together; Graft's when the turn of its model comes, since it measures
products when it loads. A model's engines end after its cells.

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
from typing import TYPE_CHECKING

from benchmarks.decode.shapes import SIZES, config_of, random_engine, write_config
from graft.bench.engines import protocol
from graft.errors import GraftError

if TYPE_CHECKING:
    from graft.bench.worker import Worker

Cells = list[tuple[int, int]]
CELLS = "2048x1,2048x16,2048x64,8192x16,32768x1,32768x4,131072x1"
SPARE = 8  # tokens of a context that stay free
SPARE_CACHE = 1.05  # times what the tokens of a cell take: blocks are not full
EAGER_CHUNK = 256  # prompt tokens at once: eager attention keeps the weights of all pairs
ATTENTION = {
    "transformers-eager": "eager",
    "transformers-sdpa": "sdpa",
    "transformers-flash": "flash_attention_2",
}

Generate = Callable[[list[list[int]], int], object]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engines load: a checkpoint, for the longest and the widest of its cells."""

    model: str
    context: int
    batch: int
    kv_bytes: int

    @classmethod
    def of(cls, model: str, cells: Cells) -> "EngineOptions":
        """With a KV cache for the cell of most tokens."""
        from transformers import AutoConfig

        config = config_of(model) if model in SIZES else AutoConfig.from_pretrained(model)
        size = getattr(config, "head_dim", None)
        size = size or config.hidden_size // config.num_attention_heads
        row = 4 * config.num_hidden_layers * config.num_key_value_heads * size  # bytes of a token
        tokens = max(context * batch for context, batch in cells)
        contexts, batches = zip(*cells, strict=True)
        return cls(model, max(contexts), max(batches), int(SPARE_CACHE * tokens * row) + 2**30)


def main() -> None:
    """Start a worker for each engine, then let them take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help=f"folders, or {', '.join(SIZES)}")
    parser.add_argument("--engines", default="vllm,graft", help=", ".join(ENGINES))
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter with vLLM")
    parser.add_argument("--transformers-python", default=sys.executable)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.engines.split(",")) - set(ENGINES):
        parser.error(f"unknown engine {unknown.pop()!r}; choose from {', '.join(ENGINES)}")
    models = options.model.split(",")
    lists = [_cells(each) for each in options.cells.split(";")]
    if len(lists) not in (1, len(models)):
        parser.error("--cells: one list for all models, or one for each, separated by ;")
    cells = dict(zip(models, lists * (len(models) // len(lists)), strict=True))
    if options.worker:
        name, model = options.worker.split(":", 1)
        serve(ENGINES[name], EngineOptions.of(model, cells[model]), options.tokens)
    else:
        compare(options, cells)


def _cells(text: str) -> Cells:
    pairs = (cell.split("x") for cell in text.split(","))
    return [(int(context), int(batch)) for context, batch in pairs]


def compare(options: argparse.Namespace, cells: dict[str, Cells]) -> None:
    """A row for each cell and engine."""
    from benchmarks.rows import rows_file  # vLLM's interpreter need not have all of Graft
    from graft.bench.worker import Worker

    engines = options.engines.split(",")
    pythons = dict.fromkeys(ATTENTION, options.transformers_python)
    pythons |= {"vllm": options.vllm_python, "graft": sys.executable}
    command = ["-m", "benchmarks.decode.plain_steps", *sys.argv[1:], "--worker"]
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = {
            (model, name): Worker(
                [pythons[name], *command, f"{name}:{model}"], logs / f"{number}-{name}.log"
            )
            for number, model in enumerate(cells)
            for name in engines
        }
        for worker in workers.values():
            stack.callback(worker.close)
        together = [worker for (_, name), worker in workers.items() if name != "graft"]
        with ThreadPoolExecutor(len(together) or 1) as threads:
            failed = dict(zip(map(id, together), threads.map(_start, together), strict=True))
        file = stack.enter_context(rows_file("steps", options))
        for model in cells:
            running = {name: workers[model, name] for name in engines}
            for name, worker in running.items():
                error = _start(worker) if name == "graft" else failed[id(worker)]
                print(model, name, error or worker.about, flush=True)
            for context, batch in cells[model]:
                for name, worker in running.items():
                    cell = {"context": context, "batch": batch}
                    try:
                        answer = worker.ask({"id": name, **cell})
                    except GraftError as error:  # such as out of memory
                        answer = {"error": str(error)}
                    row = {"model": Path(model).name, "engine": name, **cell, **answer}
                    print(json.dumps(row), flush=True)
                    file.row({key: value for key, value in row.items() if key != "id"})
            for worker in running.values():
                worker.kill()


def _start(worker: "Worker") -> GraftError | None:
    """The error of an engine that cannot run this model."""
    try:
        worker.start({})
    except GraftError as error:
        return error
    return None


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
    _seconds(generate, prompts, tokens + 1)
    prefill, whole = (_seconds(generate, prompts, count) for count in (1, tokens + 1))
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

    with tempfile.TemporaryDirectory() as shape:
        is_shape = options.model in SIZES
        if is_shape:
            write_config(options.model, Path(shape))
        engine = LLM(
            shape if is_shape else options.model,
            load_format="dummy" if is_shape else "auto",
            dtype="bfloat16",
            max_model_len=options.context,
            max_num_seqs=options.batch,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            **protocol.fixed_kv_cache(options.kv_bytes),
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
