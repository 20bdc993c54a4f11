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


def large(kept: Results, earlier: Results) -> Grid:
    """A row per preset, a column per suite; the last ones are of an earlier head."""
    cells = [{"suite": name} for name in ("spec_bench", "humaneval", "squad")]
    rows = [select(kept.rows, **cell) for cell in cells]
    cells = [{"suite": "spec_bench", "temperature": 1}]
    cells += [{"suite": name} for name in ("qmsum", "batch4", "batch8")]
    rows += [select(earlier.rows, **cell) for cell in cells]
    lines = [
        [f"`{variant}`", *(_speed(each, variant) for each in rows)]
        for variant in ("eagle3", "head", "casd", "rasd-pld", "auto")
    ]
    columns = ["preset", "Spec-Bench", "HumanEval", "SQuAD", "temperature 1 ¹", "QMSum, 13K ¹",
               "Spec-Bench × 4 ¹", "× 8 ¹"]  # fmt: skip
    counts = [len(select(each, variant="plain")) for each in rows[:5]]
    alone = rows[0]
    over = {
        name: " / ".join(
            number(decode_speedup(each, variant, "eagle3").mean)
            for each in (alone, select(alone, category="rag"), rows[2], rows[4])
        )
        for name, variant in (("casd", "casd"), ("rasd", "rasd-pld"))
    }
    free = ", ".join(
        f"{name} {number(decode_speedup(select(alone, category=name), 'auto').mean)}"
        for name in ("mt_bench", "qa", "translation")
    )
    steps = [tokens_per_step(select(alone, variant=name)) for name in ("eagle3", "casd")]
    figures = {
        "counts": ", ".join(map(str, counts)),
        "free": free,
        "eagle3": number(decode_speedup(alone, "eagle3").mean),
        "steps": span(steps),
        **over,
    }
    return Grid(columns, lines, figures)


def small(results: Results) -> Grid:
    """Figures of the text: speed and tokens per step, then tokens per step by context."""
    rows = select(results.rows, suite="spec_bench", temperature=0, batch=1)
    presets = ("eagle2", "longspec", "casd", "rasd-pld", "auto")
    speeds = ", ".join(f"`{name}` {_speed(rows, name)}" for name in presets)
    steps = [tokens_per_step(select(rows, variant=name)) for name in ("eagle2", "longspec")]
    return Grid(figures={**_by_context(results), "speeds": speeds, "steps": span(steps)})


def _speed(rows: Sequence[Row], variant: str) -> str:
    mine = select(rows, variant=variant)
    if not mine:
        return NOTHING
    return f"{interval(decode_speedup(rows, variant))}, {number(tokens_per_step(mine))}"


def _by_context(results: Results) -> dict[str, str]:
    """Tokens per step at 1K / 4K / 8K by suite and preset."""
    figures = {}
    for suite in ("qmsum", "leval"):
        for variant in ("eagle2", "longspec", "rasd-pld"):
            rows = select(results.rows, suite=suite, variant=variant)
            found = [tokens_per_step(select(rows, context=n * K)) for n in (1, 4, 8)]
            figures[f"{suite}_{variant}"] = " / ".join(number(each) for each in found if each)
    return figures


def costs(costs: Results, training: Results, at_length: Results) -> Grid:
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
    figures["plain"] = number(plain[8 * K])
    for stage in dict.fromkeys(row["stage"] for row in training.rows):
        rows = select(training.rows, stage=stage)
        held_out = [row["tokens_per_step"] for row in rows if "tokens_per_step" in row]
        figures[stage] = number(held_out[-1])
    for variant in ("eagle3", "longspec"):
        peaks = select(at_length.rows, variant=variant, part="memory")
        figures[f"{variant}_gb"] = " / ".join(number(row["peak_gb"], 1) for row in peaks)
    held_out = [row["tokens_per_step"] for row in at_length.rows if "tokens_per_step" in row]
    figures["longspec15"] = number(held_out[-1])
    return Grid(figures=figures)


SECTION = Section(
    "Draft heads and their training",
    [
        Table(
            "large",
            "EAGLE-3 at an 8B model's price",
            ["decode_h200_bf16_grown_kept_head", "decode_h200_bf16_grown_vllm"],
            "benchmarks decode --model GROWN --head HEAD",
            """Decoding against plain, tokens per step; Qwen2.5-Coder-1.5B and the head in `heads/`
            grown to 7.7B weights, bf16, {counts} prompts, 24 in batches. ¹ an earlier head of 1,700
            steps, not 3,137. Of a round's 8.8 ms the GPU drafts 2.1, verifies 5.4. Against the
            head alone on Spec-Bench / its RAG / SQuAD / QMSum ¹: `casd` {casd}, `rasd-pld` {rasd}.
            `auto` without copies: {free}.""",
            large,
        ),
        Table(
            "heads",
            "smollm2-135m with its heads",
            ["decode_h200_bf16_heads"],
            "python -m benchmarks decode --suite SUITE --drafts plain,eagle2,longspec,casd,auto",
            """Decoding against plain, tokens per step, 18 prompts of Spec-Bench, bf16, 128 tokens:
            {speeds}; a plain step is short. Tokens per step at 1K / 4K / 8K, three prompts each:
            QMSum EAGLE-2 {qmsum_eagle2}, LongSpec {qmsum_longspec}, `rasd-pld` {qmsum_rasd-pld};
            government reports {leval_eagle2}, {leval_longspec}, {leval_rasd-pld}.""",
            small,
        ),
        Table(
            "costs",
            "Time, memory, training",
            ["heads_h200_bf16_costs", "train_h200_bf16_smollm2", "train_h200_bf16_qwen15"],
            "benchmarks.heads.costs",
            """At 8K a plain step takes {plain} ms. EAGLE-2 drafts in {eagle2_draft} ms; draft
            and verification take {eagle2_steps} plain steps; LongSpec {longspec_draft} ms and
            {longspec_steps}. EAGLE-2's KV cache takes {eagle2_128k} MB at 128K, LongSpec's
            {longspec_8k} MB at any length. Held-out tokens per step: EAGLE-2 {eagle2},
            {eagle2_own} on the target's answers; LongSpec {longspec1}, {longspec_long} over three
            layers; for the 1.5B {longspec15} (3,520 answers). Training memory, 1.5B, rows of 8K /
            16K / 32K: EAGLE-3 {eagle3_gb} GB, LongSpec {longspec_gb} GB.""",
            costs,
        ),
    ],
)
