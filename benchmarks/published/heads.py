"""Tables of draft heads."""

from collections.abc import Sequence

from benchmarks.published.figures import (
    NOTHING,
    Row,
    decode_speedup,
    interval,
    number,
    select,
    span,
    tokens_per_step,
)
from benchmarks.published.page import Grid, Section, Table
from graft.bench.result_file import Results

K = 1024


def spec_bench(results: Results) -> Grid:
    """A row per preset: one sequence, then batches."""
    lines = []
    for variant in ("eagle2", "longspec", "casd", "rasd-pld", "auto"):
        rows = select(results.rows, suite="spec_bench")
        one = [select(rows, temperature=t, batch=1) for t in (0, 1)]
        batches = [decode_speedup(select(rows, batch=batch), variant) for batch in (2, 4, 8)]
        shown = " / ".join(number(each.mean) if each else NOTHING for each in batches)
        lines.append([f"`{variant}`", *(_speed(each, variant) for each in one),
                      NOTHING if not any(batches) else shown])  # fmt: skip
    columns = ["preset", "greedy, tokens/step", "temperature 1, tokens/step",
               "batch 2 / 4 / 8, greedy"]  # fmt: skip
    alone = select(results.rows, suite="spec_bench", temperature=0, batch=1)
    steps = [tokens_per_step(select(alone, variant=name)) for name in ("eagle2", "longspec")]
    return Grid(columns, lines, {**_by_context(results), "steps": span(steps)})


def _speed(rows: Sequence[Row], variant: str) -> str:
    mine = select(rows, variant=variant)
    if not mine:
        return NOTHING
    return f"{interval(decode_speedup(rows, variant))}, {number(tokens_per_step(mine))}"


def _by_context(results: Results) -> dict[str, str]:
    """Tokens per step at 1K / 4K / 8K by suite and preset."""
    figures = {}
    for suite in ("qmsum", "leval", "multi_news"):
        for variant in ("eagle2", "longspec", "rasd-pld"):
            rows = select(results.rows, suite=suite, variant=variant)
            found = [tokens_per_step(select(rows, context=n * K)) for n in (1, 4, 8)]
            figures[f"{suite}_{variant}"] = " / ".join(number(each) for each in found if each)
    return figures


def costs(costs: Results, training: Results) -> Grid:
    """Figures of the text."""
    figures = {}
    for variant in ("eagle2", "longspec"):
        rows = select(costs.rows, variant=variant)
        memory = {row["context"]: row["held_bytes"] / 1e6 for row in select(rows, part="memory")}
        time = select(rows, part="time", context=8 * K)[0]
        figures[f"{variant}_8k"] = number(memory[8 * K], 1)
        figures[f"{variant}_128k"] = number(memory[128 * K], 1)
        figures[f"{variant}_steps"] = number(time["step_in_plain_steps"], 1)
        figures[f"{variant}_draft"] = number(time["draft_ms"])
    plain = {row["context"]: row["plain_ms"] for row in select(costs.rows, part="time")}
    figures |= {"plain": number(plain[8 * K]), "plain_1k": number(plain[K], 1)}
    for stage in dict.fromkeys(row["stage"] for row in training.rows):
        rows = select(training.rows, stage=stage)
        held_out = [row["tokens_per_step"] for row in rows if "tokens_per_step" in row]
        figures[stage] = number(held_out[-1])
        seconds = max(row.get("elapsed", 0) for row in rows)
        figures[f"{stage}_minutes"] = number(seconds / 60, 1)
    return Grid(figures=figures)


SECTION = Section(
    "Draft heads and their training",
    [
        Table(
            "heads",
            "smollm2-135m with its heads",
            ["decode_h200_bf16_heads"],
            "python -m benchmarks decode --suite SUITE --drafts plain,eagle2,longspec,casd,auto",
            """Decoding against plain, 18 prompts of Spec-Bench (12, 12 and 8 in batches), bf16,
            128 tokens. Heads gain tokens but hardly time, as a plain step is short. Tokens
            per step at 1K / 4K / 8K, three prompts each: QMSum EAGLE-2 {qmsum_eagle2}, LongSpec
            {qmsum_longspec}, `rasd-pld` {qmsum_rasd-pld}; government reports {leval_eagle2},
            {leval_longspec}, {leval_rasd-pld}; Multi-News at 4K / 8K {multi_news_eagle2},
            {multi_news_longspec}.""",
            spec_bench,
        ),
        Table(
            "costs",
            "Time, memory, training",
            ["heads_h200_bf16_costs", "train_h200_bf16_smollm2"],
            "python -m benchmarks.heads.costs",
            """At 8K a plain step takes {plain} ms. EAGLE-2 drafts in {eagle2_draft} ms; draft
            and verification take {eagle2_steps} plain steps; LongSpec {longspec_draft} ms and
            {longspec_steps}. EAGLE-2's KV cache takes {eagle2_8k} MB at 8K and {eagle2_128k} MB
            at 128K, LongSpec's {longspec_8k} MB at any length. Held-out tokens per step of a
            chain of five after each stage: EAGLE-2 {eagle2} ({eagle2_minutes} minutes),
            {eagle2_moved} with offset positions, {eagle2_own} on the target's answers; LongSpec
            {longspec1} ({longspec1_minutes} minutes), {longspec} on rows of 8K,
            {longspec_layers} over three target layers, {longspec_long} on rows of 8K.""",
            costs,
        ),
    ],
)
