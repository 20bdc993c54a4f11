"""Throughput of a real vLLM with and without Graft's proposer, several RAG requests at a time.

In vLLM's environment (`make vllm-venv`), with PYTHONPATH at the checkout:

    python benchmarks/vllm_plugin.py MODEL_FOLDER --data squad/dev.json --out results/FILE.jsonl

One engine process per system, all alive and asked in turn, prompts in the same groups; what is
compared is decode seconds of the same group in the same repeat. The systems: plain, ngram at the
length asked for and at its own (5), suffix where arctic-inference is installed, and graft. Prompts
of ngram's settings (lookup 2 to 5) were others: the even-numbered questions; these are the odd.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

HERE = Path(__file__).resolve()
PEER = HERE.parents[1] / "graft" / "bench" / "peers"
sys.path.insert(0, str(PEER))


def speculation(system: str, length: int) -> dict | None:
    """vLLM's speculative config of a system."""
    ngram = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    ours = {"method": "custom_class", "model": "graft.integrations.vllm.Proposer"}
    return {
        "plain": None,
        "ngram": {**ngram, "num_speculative_tokens": length},
        "ngram5": {**ngram, "num_speculative_tokens": 5},
        "suffix": {"method": "suffix", "num_speculative_tokens": length},
        "graft": {**ours, "num_speculative_tokens": length},
    }[system]


def work(chosen: argparse.Namespace) -> None:
    """One engine: reads groups of prompts, answers with tokens, seconds and vLLM's counters."""
    import protocol
    import vllm_peer

    channel = protocol.private_stdout()
    vllm_peer.set_environment(chosen)
    from vllm import LLM

    llm = LLM(
        model=chosen.model,
        dtype="float32",
        max_model_len=2048,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=speculation(chosen.worker, chosen.length),
    )

    def answer(request: dict) -> dict:
        before = counters(llm)
        timed = vllm_peer.answer(llm.llm_engine, request)
        after = counters(llm)
        return {**timed, **{name: after[name] - before[name] for name in after}}

    protocol.serve(answer, channel, {})


def counters(llm: object) -> dict[str, int]:
    """Drafted and accepted so far, by vLLM's own count."""
    names = {"num_draft_tokens": "drafted", "num_accepted_tokens": "accepted"}
    found = dict.fromkeys(names.values(), 0)
    for metric in llm.get_metrics():
        name = names.get(metric.name.removeprefix("vllm:spec_decode_"))
        if name:
            found[name] += metric.value
    return found


class Worker:
    """An engine in a process of its own."""

    def __init__(self, system: str, chosen: argparse.Namespace) -> None:
        command = [sys.executable, str(HERE), chosen.model, "--worker", system]
        self._process = subprocess.Popen(
            [*command, "--length", str(chosen.length)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait(self) -> dict:
        """The next line it says."""
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("error: a vLLM worker ended; its output is above")
        return json.loads(line)

    def ask(self, request: dict) -> dict:
        """Its answer; an error ends the benchmark."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found = self.wait()
        if "error" in found:
            raise SystemExit(f"error: {found['error']}")
        return found

    def end(self) -> None:
        """Closing stdin ends it."""
        self._process.stdin.close()
        self._process.wait()


def groups(chosen: argparse.Namespace) -> Iterator[tuple[int, list[list[int]]]]:
    """(concurrency, prompts): the same prompts for every concurrency."""
    from transformers import AutoTokenizer

    from graft.bench.suites import squad

    tokenizer = AutoTokenizer.from_pretrained(chosen.model)
    odd = [prompt for prompt in squad.read(chosen.data) if prompt.number % 2]
    picked = odd[:: max(1, len(odd) // chosen.limit)][: chosen.limit]
    prompts = [
        tokenizer.apply_chat_template(each.content, add_generation_prompt=True, return_dict=False)
        for each in picked
    ]
    for size in chosen.concurrency:
        for first in range(0, len(prompts) - size + 1, size):
            yield size, prompts[first : first + size]


def run(chosen: argparse.Namespace) -> None:
    """Ask all systems for each group in turn, the first one changing; write a line for each."""
    workers = {name: Worker(name, chosen) for name in chosen.systems}
    for worker in workers.values():
        worker.wait()
    lines, names, started = [], list(workers), time.perf_counter()
    todo = [each for _ in range(chosen.repeats) for each in groups(chosen)]
    with chosen.out.open("w", encoding="utf-8") as out:
        for at, (size, prompts) in enumerate(todo):
            request = {"id": at, "prompts": prompts, "max_tokens": chosen.max_tokens}
            request |= {"end_tokens": [2], "temperature": 0.0, "seeds": [0] * size}
            for name in names[at % len(names) :] + names[: at % len(names)]:
                found = workers[name].ask(request)
                lines.append({"system": name, "concurrency": size, "group": at, **found})
                out.write(json.dumps(lines[-1]) + "\n")
                out.flush()
            spent = time.perf_counter() - started
            print(f"{at + 1} of {len(todo)} groups, {spent:.0f} s", file=sys.stderr)
    for worker in workers.values():
        worker.end()
    report(lines, names)


def report(lines: list[dict], names: list[str]) -> None:
    """Paired ratios of decoding speed and of steps, by concurrency."""
    for size in sorted({line["concurrency"] for line in lines}):
        by = {
            (line["system"], line["group"]): line for line in lines if line["concurrency"] == size
        }
        print(f"concurrency {size}")
        for name in names:
            mine = [line for (system, _), line in by.items() if system == name]
            tokens = sum(len(ids) for line in mine for ids in line["token_ids"])
            steps = sum(line["steps"] for line in mine)
            seconds = sum(line["total_seconds"] for line in mine)
            drafted = sum(line["drafted"] for line in mine)
            accepted = sum(line["accepted"] for line in mine)
            print(
                f"  {name:8} {tokens / seconds:7.1f} tokens/s end to end  "
                f"{tokens / max(steps, 1):.2f} tokens/step  accepted {accepted} of {drafted}"
            )
        for peer in names[:-1]:
            print(f"  {names[-1]} / {peer}: {ratio(by, names[-1], peer)}")


def ratio(by: dict, ours: str, peer: str) -> str:
    """How many times as fast in decoding: the geometric mean over groups, with 95 % bounds."""
    pairs = [(by[peer, group], line) for (system, group), line in by.items() if system == ours]
    logs = [math.log(decode_seconds(a) / decode_seconds(b)) for a, b in pairs]
    steps = sum(a["steps"] for a, _ in pairs) / sum(b["steps"] for _, b in pairs)
    same = sum(a["token_ids"] == b["token_ids"] for a, b in pairs)
    spread = 1.96 * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    low, middle, high = (math.exp(mean(logs) + by) for by in (-spread, 0.0, spread))
    return (
        f"{middle:.2f} [{low:.2f}, {high:.2f}] in decoding, {steps:.2f} by steps, "
        f"{same} of {len(pairs)} groups with the same tokens"
    )


def decode_seconds(line: dict) -> float:
    """From the last prompt's first token on."""
    return max(line["total_seconds"] - line["prefill_seconds"], 1e-9)


def main() -> None:
    """Read the options; be the runner or one worker."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model", help="folder with safetensors")
    options.add_argument("--data", type=Path, help="SQuAD's dev.json")
    options.add_argument("--out", type=Path, default=Path("vllm_plugin.jsonl"))
    options.add_argument("--systems", nargs="+", default=["plain", "ngram", "ngram5", "graft"])
    options.add_argument("--concurrency", nargs="+", type=int, default=[1, 4, 8, 16])
    options.add_argument("--length", type=int, default=16, help="num_speculative_tokens")
    options.add_argument("--limit", type=int, default=16, help="prompts")
    options.add_argument("--max-tokens", type=int, default=96)
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    chosen.kv_cache_gib, chosen.one_process = 2, True
    if chosen.worker:
        import vllm_peer

        vllm_peer.preload_openmp()
        work(chosen)
    else:
        run(chosen)


if __name__ == "__main__":
    main()
