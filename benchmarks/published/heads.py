"""Tables of draft heads."""

from collections.abc import Sequence

from benchmarks.published.figures import (
    NOTHING,
    Row,
    decode_speedup,
    interval,
    mean_speedup,
    number,
    select,
    span,
    tokens_per_step,
)
from benchmarks.published.page import Grid, Section, Table
from graft.bench.result_file import Results

K = 1024
FUSING = {"eagle3": "eagle3", "casd": "casd", "rasd-pld": "rasd-pld", "rest": "rasd-rest:STORE"}


def large(results: Results) -> Grid:
    """A row per preset, a column per suite, temperature and batch."""
    cells = [
        {"suite": name, "temperature": temperature, "batch": batch}
        for name, temperature, batch in (
            ("spec_bench", 0, 1), ("humaneval", 0, 1), ("squad", 0, 1), ("qmsum", 0, 1),
            ("spec_bench", 1, 1), ("humaneval", 1, 1), ("spec_bench", 0, 4), ("spec_bench", 0, 8),
        )
    ]  # fmt: skip
    rows = [select(results.rows, **cell) for cell in cells]
    lines = [
        [f"`{variant}`", *(_speed(each, variant) for each in rows)]
        for variant in ("eagle3", "casd", "auto")
    ]
    columns = ["preset", "Spec-Bench", "HumanEval", "SQuAD", "QMSum, 12K", "Spec-Bench at 1",
               "HumanEval at 1", "Spec-Bench × 4", "× 8"]  # fmt: skip
    alone = rows[0]
    parts = (alone, select(alone, category="rag"), select(alone, category="summarization"))
    over = {
        name: " / ".join(
            mean_speedup(each, variant, "eagle3")
            for each in (*parts, *rows[2:4])
            if select(each, variant=variant)
        )
        for name, variant in (("casd", "casd"), ("rasd", "rasd-pld"))
    }
    categories = ("mt_bench", "qa", "translation", "math_reasoning")
    by_category = {
        f"{variant}_free": ", ".join(
            mean_speedup(select(alone, category=name), variant) for name in categories
        )
        for variant in ("eagle3", "auto")
    }
    figures = {
        "counts": ", ".join(str(len(select(each, variant="plain"))) for each in rows[:6]),
        "eagle3": mean_speedup(alone, "eagle3"),
        "steps": span(
            [tokens_per_step(select(alone, variant=name)) for name in ("eagle3", "casd")]
        ),
        **by_category,
        **over,
    }
    return Grid(columns, lines, figures)


def fused(results: Results) -> Grid:
    """Figures of the text: speed and tokens per step by suite, temperature and preset; speed by
    the length of branches."""
    figures = {}
    for suite in ("squad", "spider", "humaneval", "medqa"):
        for temperature in (0, 1):
            rows = select(results.rows, suite=suite, temperature=temperature)
            figures[f"{suite}{temperature}"] = ", ".join(
                f"`{name}` {mean_speedup(rows, variant)}, "
                f"{number(tokens_per_step(select(rows, variant=variant)))}"
                for name, variant in FUSING.items()
                if select(rows, variant=variant)
            )
    squad = select(results.rows, suite="squad", temperature=0)
    figures["casd"] = _by_length(squad, "casd", "casd")
    figures["rasd"] = _by_length(squad, "rasd-pld", "rasd")
    return Grid(figures=figures)


def _by_length(rows: Sequence[Row], variant: str, option: str) -> str:
    """By the length of copies: 2, 4, the preset's own, 16."""
    names = (f"{variant}?{option}.length={n}" if n else variant for n in (2, 4, None, 16))
    return " / ".join(mean_speedup(rows, name) for name in names)


def _speed(rows: Sequence[Row], variant: str) -> str:
    mine = select(rows, variant=variant)
    if not mine:
        return NOTHING
    return f"{interval(decode_speedup(rows, variant))}, {number(tokens_per_step(mine))}"


def by_context(results: Results) -> Grid:
    """Figures of the text: tokens per step of LongSpec and its twin at each context."""
    figures = {}
    for suite in dict.fromkeys(row["suite"] for row in results.rows):
        rows = select(results.rows, suite=suite)
        contexts = sorted({row["context"] for row in rows})
        for name, variant in (("offset", "longspec"), ("plain", "plain positions")):
            found = [select(rows, variant=variant, context=context) for context in contexts]
            figures[f"{suite}_{name}"] = " / ".join(number(tokens_per_step(each)) for each in found)
    return Grid(figures=figures)


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
    for variant in ("eagle3", "longspec", "twin"):
        rows = select(at_length.rows, variant=variant, part="training")
        held_out = [row["tokens_per_step"] for row in rows if "tokens_per_step" in row]
        figures[f"{variant}_held_out"] = " to ".join(number(held_out[n]) for n in (0, -1))
    return Grid(figures=figures)


SECTION = Section(
    "Draft heads and their training",
    [
        Table(
            "large",
            "EAGLE-3 at an 8B model's price",
            ["decode_h200_bf16_grown_kept_head"],
            "benchmarks.decode.cells run --model GROWN --head HEAD",
            """Decoding against plain, tokens per step; Qwen2.5-Coder-1.5B and the head in `heads/`
            grown to 7.7B weights, bf16, {counts} prompts, 24 in batches; greedy or at temperature
            1. Against `eagle3` on Spec-Bench / its RAG / its summaries / SQuAD / QMSum: `casd`
            {casd}; on the first three `rasd-pld` {rasd}. On mt_bench, qa, translation and math
            `eagle3` has {eagle3_free}, `auto` {auto_free}.""",
            large,
        ),
        Table(
            "fused",
            "Copies fused with EAGLE-3 on short prompts",
            ["decode_h200_bf16_grown_fusion"],
            "benchmarks.decode.cells run --model GROWN --head HEAD",
            """The same models, speed and tokens per step, 16 prompts. SQuAD: {squad0}; copies of 2,
            4, 8 (`casd` 10), 16 tokens {casd} and {rasd}; at temperature 1 {squad1}. HumanEval:
            {humaneval0}; at 1 {humaneval1} (9). Spider: {spider0}. MedQA: {medqa0}.""",
            fused,
        ),
        Table(
            "contexts",
            "LongSpec by context",
            ["decode_h200_bf16_qwen15_longspec"],
            "benchmarks.decode.cells run --model MODEL --head HEAD",
            """Tokens per step, Qwen2.5-Coder-1.5B, with anchor-offset and with plain positions,
            trained on rows of 8K: QMSum at 4K / 8K / 16K / 24K {qmsum_offset} and {qmsum_plain};
            government reports at 8K / 16K {leval_offset} and {leval_plain}; Multi-News at 4K
            {multi_news_offset} and {multi_news_plain}; LongBench v2 at 31K {longbench_v2_offset}
            and {longbench_v2_plain}.""",
            by_context,
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
            layers. For the 1.5B, in 5.5 minutes side by side: EAGLE-3 {eagle3_held_out} (1,280 more
            steps), LongSpec {longspec_held_out} (541 steps), its twin {twin_held_out}. Training
            memory, 1.5B, rows of 8K / 16K / 32K: {eagle3_gb} and {longspec_gb} GB.""",
            costs,
        ),
    ],
)
