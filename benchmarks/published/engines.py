"""Tables against other engines."""

from statistics import median

from benchmarks.published.figures import (
    Row,
    acceptance,
    decode_speed,
    decode_speedup,
    interval,
    number,
    percent,
    same_outputs,
    select,
    tokens_per_step,
    total_speedup,
)
from benchmarks.published.page import Grid, Section, Table
from graft.bench.result_file import Results

NAMES = {
    "plain": "Graft `plain`",
    "auto": "Graft `auto`",
    "vllm": "vLLM",
    "vllm-ngram": "vLLM, n-gram drafts of 5",
    "vllm-graft": "vLLM with Graft's proposer ¹",
    "llama.cpp": "llama.cpp ²",
    "llama.cpp-lookup": "llama.cpp, prompt lookup of 2 ¹ ²",
    "transformers": "transformers",
    "transformers-compiled": "transformers, compiled ¹",
    "transformers-lookup": "transformers, prompt lookup of 10 ¹",
}
BATCHES = (1, 2, 4, 8, 16)
LARGE = "llama-8b"  # the shape of the text's figures
FEW = 1  # the session with one prompt of each category and every engine


def cpu_engines(results: Results) -> Grid:
    """A row per engine; those of the first session where it has them."""
    lines, figures = [], {}
    for variant, name in NAMES.items():
        session = min(row["session"] for row in select(results.rows, variant=variant))
        rows = select(results.rows, session=session)
        mine = select(rows, variant=variant)
        same, compared = same_outputs(rows, variant)
        ratios = decode_speedup(rows, variant), total_speedup(rows, variant)
        lines.append([name, number(decode_speed(mine), 1), *map(interval, ratios),
                      number(tokens_per_step(mine)), f"{same} of {compared}"])  # fmt: skip
        if session != FEW and variant not in ("plain", "auto"):
            figures[variant] = interval(decode_speedup(rows, "auto", variant), 1)
    columns = ["engine", "decode tok/s", "decoding vs `plain`", "end to end vs `plain`",
               "tokens/step", "same tokens"]  # fmt: skip
    return Grid(columns, lines, figures)


def plain_steps(results: Results) -> Grid:
    """Graft's and vLLM's steps and prefill, and the ratio of their speeds."""
    lines, ratios = [], {}
    for row in select(results.rows, engine="graft"):
        cell = {name: row[name] for name in ("model", "context", "batch")}
        (other,) = select(results.rows, engine="vllm", **cell)
        shown = []
        for name, digits in (("ms_per_step", 2), ("prefill_s", 3)):
            ratio = other[name] / row[name]
            ratios[(*cell.values(), name)] = ratio
            shown += [number(row[name], digits), number(other[name], digits), number(ratio)]
        lines.append([row["model"], f"{row['context']:,} × {row['batch']}", *shown])
    steps = {key: ratio for key, ratio in ratios.items() if key[0] == LARGE and "step" in key[3]}
    prefill = [ratio for key, ratio in ratios.items() if key[0] == LARGE and "prefill" in key[3]]
    one = steps.pop((LARGE, 2048, 1, "ms_per_step"))
    figures = {
        "one": number(one),
        "others": f"{min(steps.values()):.2f} to {max(steps.values()):.2f}",
        "prefill": f"{min(prefill):.2f} to {max(prefill):.2f}",
    }
    columns = ["shape", "context × batch", "step, ms", "vLLM", "speed / vLLM", "prefill, s", "vLLM",
               "speed / vLLM"]  # fmt: skip
    return Grid(columns, lines, figures)


def cpu_batches(results: Results) -> Grid:
    """Figures of the text, over the groups of prompts that all engines have.

    The sessions resumed one run, so pairs may be of different sessions.
    """
    found = {"decode": [], "total": [], "ngram": []}
    for batch in BATCHES:
        rows = [{**row, "session": 0} for row in select(results.rows, batch=batch)]
        shared = [row["prompts"] for row in select(rows, variant="vllm")]
        rows = [row for row in rows if row["prompts"] in shared]
        found["decode"].append(decode_speedup(rows, "auto", "vllm").mean)
        found["total"].append(total_speedup(rows, "auto", "vllm").mean)
        found["ngram"].append(decode_speedup(rows, "vllm-ngram", "vllm").mean)
    return Grid(figures={name: ", ".join(map(number, means)) for name, means in found.items()})


def _speed(rows: list[Row]) -> float:
    return median(row["tokens"] / row["total_seconds"] for row in rows)


def vllm_proposer(results: Results, served: Results) -> Grid:
    """Graft's proposer inside vLLM, and `graft serve` with and without drafts."""
    lines = []
    for count in (1, 4, 8):
        rows = [_as_decode_row(row) for row in select(results.rows, concurrency=count)]
        ratios = (decode_speedup(rows, "graft", base) for base in ("plain", "ngram", "ngram5"))
        shares = (acceptance(select(rows, variant=name)) for name in ("graft", "ngram", "ngram5"))
        lines.append([str(count), *map(interval, ratios), " / ".join(map(percent, shares)),
                      _served(served, count)])  # fmt: skip
    columns = ["concurrent requests", "proposer vs vLLM", "vs n-gram, 16 tokens",
               "vs n-gram, 5 tokens", "accepted: proposer / 16 / 5",
               "`graft serve`: `auto` vs `plain`"]  # fmt: skip
    return Grid(columns, lines)


def _as_decode_row(row: Row) -> Row:
    """A group of concurrent requests as a batch."""
    decode = row["total_seconds"] - row["prefill_seconds"]
    return {**row, "decode_seconds": decode, "prompts": [row["group"]] * row["concurrency"]}


def _served(results: Results, count: int) -> str:
    """Tokens per second of `auto` over `plain` in every repeat."""
    rows = select(results.rows, concurrency=count)
    speed = {(row["variant"], row["repeat"]): row["tokens_per_second"] for row in rows}
    return ", ".join(sorted(number(speed["auto", n] / speed["plain", n]) for n in (0, 1)))


SECTION = Section(
    "Against other engines",
    [
        Table(
            "engines",
            "Two CPU cores",
            ["decode_n1_fp32_engines"],
            "python -m benchmarks decode --engines vllm,transformers,llama.cpp",
            """Spec-Bench, 24 prompts, smollm2-135m, fp32, greedy, 96 tokens, interleaved by
            prompt. ¹ 6 prompts. ² unrounded GGUF weights. Prefill is no faster than vLLM's.""",
            cpu_engines,
        ),
        Table(
            "batches",
            "Batches on two CPU cores",
            ["decode_n1_fp32_batches"],
            "python -m benchmarks decode --categories rag --batches 1,2,4,8,16",
            """RAG prompts of 660 to 1,000 tokens in batches of 1, 2, 4, 8, 16, fp32, 64 tokens:
            `auto` decodes {decode} times as fast as vLLM, end to end {total}. vLLM's n-gram drafts
            have {ngram} of the speed of its plain decoding.""",
            cpu_batches,
        ),
        Table(
            "steps",
            "Plain decoding on one H200",
            ["steps_h200_bf16_vllm"],
            "python -m benchmarks.decode.plain_steps --model FOLDER",
            """vLLM 0.24, random weights (grown: Qwen2.5-1.5B's shape, widened), bf16, 128 tokens,
            in turns, better of two. Attention and products have changed since ([log](log.md)).""",
            plain_steps,
        ),
    ],
)
