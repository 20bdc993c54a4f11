"""Measure Graft and its peers on the same prompts, interleaved, in one run.

Each system runs in a worker process of its own interpreter, started when first needed, warmed up,
and kept alive, but stopped (SIGSTOP) while another is asked. For every prompt all systems take
their turn, in an order that rotates, so that a slow minute of the machine falls on all alike.

    python benchmarks/driver.py --data SPEC_BENCH --model FOLDER --out results.jsonl \
        --systems graft:plain,graft:auto,transformers:plain --limit 5
"""

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import prompts
from tqdm import tqdm

PEERS = Path(__file__).parent / "peers"
FIXED_METHOD = {"vllm", "llama"}  # the method is set when the worker starts, not per request


WORKER_OPTIONS_HELP = """JSON, e.g. '{"vllm:ngram": ["--num-speculative-tokens", "3"]}'"""


class Task(NamedTuple):
    """One generation to measure."""

    prompt: prompts.Prompt
    prompt_token_ids: list[int]
    system: str
    repeat: int

    @property
    def key(self) -> tuple[int, str, int]:
        """What makes a line of the result file unique."""
        return self.prompt.question_id, self.system, self.repeat


class RequestFailed(RuntimeError):
    """A worker could not answer one request, but lives."""


class Worker:
    """A peer's process; see peers/protocol.py for what is said over the pipes."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            process_group=0,  # so Ctrl-C reaches the driver alone
        )
        self.about = self.read()["ready"]
        self.warm: set[str] = set()  # methods
        self.signal(signal.SIGSTOP)

    def read(self) -> dict:
        """The next message, or a clear end if the process died."""
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"worker ended with code {self.process.wait()}; see {self.log}")
        return json.loads(line)

    def ask(self, request: dict) -> dict:
        """Wake the worker, send one request, wait for its answer."""
        self.signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.read()
        self.signal(signal.SIGSTOP)
        if "error" in answer:
            raise RequestFailed(f"{answer['error']}; see {self.log}")
        return answer

    def signal(self, number: signal.Signals) -> None:
        """To the worker and its children: some peers keep a core busy while they wait."""
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Let the process end by itself (its stdin closes), or end it."""
        if self.process.poll() is not None:
            return
        self.signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)


class Workers:
    """Workers by name, started on first use."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.running: dict[str, Worker] = {}

    def get(self, system: str, warm_up: dict) -> Worker:
        """The worker of a system, warmed up for its method by one full request."""
        peer, method = system.split(":")
        name = f"{peer}-{method}" if peer in FIXED_METHOD else peer
        if name not in self.running:
            log = self.options.out.with_suffix(f".{name}.log")
            self.running[name] = Worker(self.command(peer, method), log)
        worker = self.running[name]
        if method not in worker.warm:
            worker.ask({**warm_up, "id": "warm-up"})
            worker.warm.add(method)
        return worker

    def command(self, peer: str, method: str) -> list[str]:
        """How to start a worker; `--worker-options` adds what a peer needs."""
        options = self.options
        interpreter = getattr(options, f"python_{peer}", None) or sys.executable
        model = options.gguf if peer == "llama" else options.model
        command = [interpreter, str(PEERS / f"{peer}_peer.py"), "--model", str(model)]
        command += ["--dtype", options.dtype, "--threads", str(options.threads)]
        if peer in FIXED_METHOD:
            command += ["--method", method]
        return command + options.worker_options.get(f"{peer}:{method}", [])

    def close(self) -> None:
        """End all workers."""
        for worker in self.running.values():
            worker.close()


def parse_arguments() -> argparse.Namespace:
    """Options of the driver."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="Spec-Bench folder")
    add("--model", type=Path, required=True, help="model folder in Hugging Face layout")
    add("--gguf", type=Path, help="the same weights as a GGUF file, for llama")
    add("--dtype", default="float32")
    add("--threads", type=int, default=2)
    add("--max-tokens", type=int, default=128)
    add("--limit", type=int, help="prompts per category (all if not given)")
    add("--categories", type=lambda text: text.split(","), help="only these, comma-separated")
    add("--split", choices=("tune", "report", "all"), default="report")
    add("--repeats", type=int, default=1)
    add("--systems", type=lambda text: text.split(","), default=["graft:plain", "graft:auto"])
    for peer in ("graft", "transformers", "vllm", "llama"):
        add(f"--python-{peer}", help="interpreter of its environment (this one if not given)")
    add("--worker-options", type=json.loads, default={}, help=WORKER_OPTIONS_HELP)
    add("--out", type=Path, required=True, help="JSON lines; a second run goes on where it ended")
    return parser.parse_args()


def tokenize(model: Path, chosen: list[prompts.Prompt]) -> list[list[int]]:
    """Chat-formatted token ids, made once here so that every system sees the same."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for prompt in chosen
    ]


def plan(options: argparse.Namespace) -> Iterator[Task]:
    """Prompt by prompt, all systems; who begins changes with every prompt and repeat."""
    chosen = prompts.read(options.data)
    if options.categories:
        chosen = [prompt for prompt in chosen if prompt.category in options.categories]
    chosen = prompts.select(chosen, options.limit, options.split)
    encoded = tokenize(options.model, chosen)
    for repeat in range(options.repeats):
        for number, (prompt, token_ids) in enumerate(zip(chosen, encoded, strict=True)):
            shift = (number + repeat) % len(options.systems)
            for system in options.systems[shift:] + options.systems[:shift]:
                yield Task(prompt, token_ids, system, repeat)


def done(options: argparse.Namespace) -> set[tuple[int, str, int]]:
    """Keys of the lines already written; a line cut short by an interruption is dropped."""
    if not options.out.exists():
        return set()
    lines = options.out.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if whole != lines:
        options.out.write_text("".join(whole), encoding="utf-8")
    rows = [json.loads(line) for line in whole]
    wanted = (options.model.name, options.dtype, options.max_tokens)
    if any((row["model"], row["dtype"], row["max_tokens"]) != wanted for row in rows):
        raise SystemExit(f"{options.out} holds another model, dtype or length; name another file")
    return {(row["question_id"], row["system"], row["repeat"]) for row in rows}


def machine(threads: int) -> dict:
    """Where and with what it was measured."""
    return {
        "machine": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "platform": platform.platform(),
    }


def processor() -> str:
    """The name that lscpu gives, else what Python knows."""
    try:
        text = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor()
    names = [line.split(":")[1].strip() for line in text.splitlines() if "Model name" in line]
    return names[0] if names else platform.processor()


def measure(task: Task, workers: Workers, hardware: dict, options: argparse.Namespace) -> dict:
    """One line of the result file."""
    request = {
        "id": f"{task.prompt.question_id}-{task.repeat}",
        "prompt_token_ids": task.prompt_token_ids,
        "max_tokens": options.max_tokens,
        "method": task.system.split(":")[1],
    }
    worker = workers.get(task.system, warm_up=request)
    load_before = os.getloadavg()[0]
    answer = worker.ask(request)
    return {
        "question_id": task.prompt.question_id,
        "category": task.prompt.category,
        "system": task.system,
        "repeat": task.repeat,
        "prompt_tokens": len(task.prompt_token_ids),
        "max_tokens": options.max_tokens,
        "model": options.model.name,
        "dtype": options.dtype,
        **{name: value for name, value in answer.items() if name != "id"},
        "about": worker.about,
        "hardware": hardware,
        "load_before": round(load_before, 2),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def main() -> None:
    """Measure what is not in the result file yet."""
    options = parse_arguments()
    finished = done(options)
    tasks = [task for task in plan(options) if task.key not in finished]
    hardware = machine(options.threads)
    workers = Workers(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    try:
        with options.out.open("a", encoding="utf-8") as file:
            for task in (bar := tqdm(tasks, unit="run")):
                bar.set_postfix_str(f"{task.prompt.category} {task.system}")
                try:
                    row = measure(task, workers, hardware, options)
                except RequestFailed as error:
                    tqdm.write(f"{task.system}, question {task.prompt.question_id}: {error}")
                    continue
                file.write(json.dumps(row) + "\n")
                file.flush()
    except KeyboardInterrupt:
        raise SystemExit(f"stopped; run again to go on ({options.out})") from None
    finally:
        workers.close()


if __name__ == "__main__":
    main()
