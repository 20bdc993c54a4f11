"""Whole answers on a GPU: Graft against transformers, and drafting against plain decoding.

    python benchmarks/gpu_decoding.py MODEL --data question.jsonl --out results/gpu_decoding.jsonl

Every answer has the same number of tokens, end tokens are ignored. Systems take turns on the same
prompts (Spec-Bench, report half); the first turn warms up and does not count. One JSON line per
turn; the table at the end has medians and, per category, the paired ratio of auto to plain.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import transformers

import graft
from graft import SamplingParams
from graft.bench.peers.hf_compile import Compiled
from graft.bench.task import read_suite, select

PAIRED = ("rag", "summarization")


def main() -> None:
    """Measure, print, write."""
    options, start = _options(), time.perf_counter()
    engine = graft.load(options.model, dtype="bf16", device=options.device, prefix_cache=0)
    suite = read_suite("spec_bench", options.data.parent)
    runs = Runs(engine, options)
    print(f"loaded in {time.perf_counter() - start:.0f} s", flush=True)
    for batch in options.batches:
        runs.against_transformers(select(suite, limit=4, split="report", categories=()), batch)
        runs.write()
    for category in PAIRED:
        chosen = select(suite, limit=options.prompts, split="report", categories=(category,))
        runs.drafted(chosen, category)
        runs.write()
    runs.report()


class Runs:
    """All systems around one model."""

    def __init__(self, engine: graft.Engine, options: argparse.Namespace) -> None:
        self.engine, self.options = engine, options
        self.rows: list[dict[str, Any]] = []
        self.written = 0
        self.network = transformers.AutoModelForCausalLM.from_pretrained(
            engine.loaded.checkpoint.folder, dtype=torch.bfloat16
        ).to(options.device)
        self.compiled = Compiled(self.network, "reduce-overhead")

    def encode(self, prompts: list[Any]) -> list[list[int]]:
        """Token ids, by the chat template."""
        return [self.engine.encoder.prompt(prompt.content).tokens for prompt in prompts]

    def against_transformers(self, prompts: list[Any], batch: int) -> None:
        """Plain decoding of batches."""
        encoded = sorted(self.encode(prompts), key=len)
        groups = [encoded[i : i + batch] for i in range(0, len(encoded) - batch + 1, batch)]
        picked = groups[:: max(1, len(groups) // self.options.groups)][: self.options.groups]
        for turn in range(self.options.repeats + 1):
            for number, group in enumerate(picked):
                for system in self.options.systems:
                    seconds, tokens = getattr(self, "_" + system)(group)
                    self._note("batch", system, turn, seconds, tokens, f"{batch}/{number}", batch)

    def drafted(self, prompts: list[Any], category: str) -> None:
        """auto and plain in turns, one prompt at a time."""
        for number, prompt in enumerate(self.encode(prompts)):
            outputs = {}
            for turn in range(self.options.repeats + 1):
                for draft in ("plain", "auto"):
                    start = time.perf_counter()
                    result = self.engine.generate(prompt, self._params(), draft=draft)
                    seconds = time.perf_counter() - start
                    outputs[draft] = result.token_ids
                    row = self._note(category, draft, turn, seconds, result.stats.tokens, number, 1)
                    row |= {
                        "prefill": result.stats.prefill_seconds,
                        "decode": result.stats.decode_seconds,
                        "per_step": result.stats.tokens_per_step,
                    }
            same = outputs["plain"] == outputs["auto"]
            self.rows[-1]["same"] = same

    def _params(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.options.tokens, ignore_eos=True)

    def _graft(self, group: list[list[int]]) -> tuple[float, int]:
        start = time.perf_counter()
        results = self.engine.generate(list(group), self._params(), draft="plain")
        return time.perf_counter() - start, sum(len(result.token_ids) for result in results)

    def _padded(self, group: list[list[int]]) -> dict[str, torch.Tensor]:
        width = max(map(len, group))
        ids = torch.zeros(len(group), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(group):
            ids[row, width - len(tokens) :] = torch.tensor(tokens)
            mask[row, width - len(tokens) :] = 1
        return {
            "inputs": ids.to(self.network.device),
            "attention_mask": mask.to(self.network.device),
        }

    def _hf(self, group: list[list[int]], **more: Any) -> tuple[float, int]:  # noqa: ANN401
        inputs = self._padded(group)
        wanted = {
            "max_new_tokens": self.options.tokens, "do_sample": False, "eos_token_id": None,
            "pad_token_id": 0,
        }  # fmt: skip
        if more:
            wanted |= self.compiled.options(inputs, wanted)
        _synchronize()
        start = time.perf_counter()
        output = self.network.generate(**inputs, **wanted)
        _synchronize()
        made = output.shape[1] - inputs["inputs"].shape[1]
        return time.perf_counter() - start, made * len(group)

    def _hf_compile(self, group: list[list[int]]) -> tuple[float, int]:
        return self._hf(group, compiled=True)

    def _note(  # noqa: PLR0913
        self, part: str, system: str, turn: int, seconds: float, tokens: int, what: object,
        batch: int,
    ) -> dict[str, Any]:  # fmt: skip
        row = {
            "model": self.engine.model_name, "part": part, "system": system, "turn": turn,
            "batch": batch, "what": what, "seconds": seconds, "tokens": tokens,
            "device": _device_name(), "torch": torch.__version__,
            "transformers": transformers.__version__,
        }  # fmt: skip
        self.rows.append(row)
        return row

    def write(self) -> None:
        """What is not in the file yet."""
        with self.options.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows[self.written :])
        self.written = len(self.rows)

    def report(self) -> None:
        """The table."""
        counted = [row for row in self.rows if row["turn"]]
        cells: dict[tuple, list[dict[str, Any]]] = defaultdict(list)
        for row in counted:
            cells[row["part"], row["batch"], row["system"]].append(row)
        for (part, batch, system), rows in cells.items():
            speed = statistics.median(row["tokens"] / row["seconds"] for row in rows)
            more = ""
            if "decode" in rows[0]:
                decoding = statistics.median((r["tokens"] - 1) / r["decode"] for r in rows)
                steps = statistics.fmean(r["per_step"] for r in rows)
                more = f", decoding {decoding:7.0f}, {steps:.2f} tokens a step"
            print(f"{part:14} batch {batch:2} {system:11} {speed:8.0f} tokens/s{more}")
        for category in PAIRED:
            _print_ratio(category, [row for row in counted if row["part"] == category])


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _print_ratio(category: str, rows: list[dict[str, Any]]) -> None:
    """Geometric means of auto / plain over prompts, with a bootstrapped 95 % interval."""
    import numpy as np

    for kind in ("seconds", "decode"):
        medians: dict[tuple, list[float]] = defaultdict(list)
        for row in rows:
            medians[row["what"], row["system"]].append(row[kind])
        prompts = sorted({what for what, _ in medians})
        logs = np.log([
            statistics.median(medians[p, "plain"]) / statistics.median(medians[p, "auto"])
            for p in prompts
        ])  # fmt: skip
        rng = np.random.default_rng(0)
        drawn = np.exp(rng.choice(logs, (4000, len(logs))).mean(1))
        low, high = np.quantile(drawn, (0.025, 0.975))
        whole = "end to end" if kind == "seconds" else "decoding"
        same = sum(bool(row.get("same")) for row in rows)
        print(
            f"{category:14} auto / plain {whole:10} {np.exp(logs.mean()):.2f} "
            f"({low:.2f} to {high:.2f}), {len(prompts)} prompts, {same} outputs equal"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=16, help="of RAG and of summarisation")
    parser.add_argument("--groups", type=int, default=3, help="batches of every size")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--systems", nargs="+", default=["graft", "hf", "hf_compile"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
