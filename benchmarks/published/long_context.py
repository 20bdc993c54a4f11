"""Tables of long contexts: self-speculation, draft models, RAPID's target, quality."""

import math
from collections.abc import Sequence

from benchmarks.published.figures import (
    NOTHING,
    Row,
    acceptance,
    decode_speedup,
    interval,
    number,
    percent,
    plus_minus,
    score_change,
    select,
    span,
    tokens,
    tokens_per_step,
    with_settings,
)
from benchmarks.published.page import Grid, Section, Table
from graft.bench.result_file import Results

K = 1024
VARIANTS = ("copy", "rapid", "rapid+copy", "magicdec", "triforce")
YARN, QUEUE = 2, 3  # sessions of smollm2 and of the queue
BY_PROMPT = ("prompts",)  # sessions of one setting are one sample


def self_speculation(results: Results, many: Results) -> Grid:
    """A row per context and batch, then sixteen contexts of 32K."""
    lines, speedups, steps = [], {name: [] for name in VARIANTS}, []
    for context in (8 * K, 16 * K, 32 * K):
        for batch in (1, 4, 16):
            rows = select(results.rows, context=context, batch=batch)
            if not rows or (batch == 4 and context < 32 * K):
                continue
            for name in VARIANTS:
                speedups[name].append(decode_speedup(rows, name).mean)
            step = [_step_ms(row) for row in select(rows, variant="plain")]
            steps += step if batch == 1 else []
            lines.append([f"{tokens(context)} × {batch}", number(sum(step) / len(step)),
                          *(_cell(rows, name) for name in VARIANTS)])  # fmt: skip
    figures = {name: span(found) for name, found in speedups.items()}
    figures["step"] = span(steps)
    yarn = select(many.rows, session=YARN)
    figures["yarn"] = number(decode_speedup(yarn, "magicdec").mean)
    columns = ["context × batch", "plain step, ms", *(f"`{name}`" for name in VARIANTS)]
    return Grid(columns, [*lines, *_sixteen(many)], figures)


def _cell(rows: Sequence[Row], variant: str) -> str:
    """Speed-up, tokens per step, accepted drafts."""
    mine = select(rows, variant=variant)
    if not mine:
        return NOTHING
    found = decode_speedup(rows, variant)
    return f"{number(found.mean)}, {number(tokens_per_step(mine))}, {percent(acceptance(mine))}"


def _sixteen(results: Results) -> list[list[str]]:
    """The queue is measured by tokens per second of all its answers."""
    lines = []
    for session, name in ((0, "32K × 16"), (YARN, "32K × 16, smollm2 by YaRN")):
        rows = select(results.rows, session=session)
        step = [_step_ms(row) for row in select(rows, variant="plain")]
        lines.append([name, number(step[0]), *(_cell(rows, variant) for variant in VARIANTS)])
    queue = {row["variant"]: row["total_seconds"] / row["tokens"]
             for row in select(results.rows, session=QUEUE)}  # fmt: skip
    speedups = [number(queue["plain"] / queue[name]) if name in queue else NOTHING
                for name in VARIANTS]  # fmt: skip
    return [*lines, ["32K, queue of 48 for 16 places", NOTHING, *speedups]]


def _step_ms(row: Row) -> float:
    """Of all sequences of a batch together."""
    return 1e3 * row["decode_seconds"] / row["steps"] * row["batch"]


def long_draft_model(results: Results) -> Grid:
    """A smaller and a larger drafter, as text."""
    figures = {}
    cells = [select(results.rows, session=session, context=context, batch=batch)
             for session in (0, 1) for context in (8 * K, 16 * K, 32 * K)
             for batch in (1, 4, 16)]  # fmt: skip
    for name in ("sd", "rapid", "rapid-up"):
        mine = [rows for rows in cells if select(rows, variant=name)]
        figures[name] = span(decode_speedup(rows, name).mean for rows in mine)
        shares = (acceptance(select(rows, variant=name)) for rows in mine)
        figures[f"{name}_accepted"] = span(shares, percent)
    return Grid(figures=figures)


def rapid_target(results: Results) -> Grid:
    """Acceptance and ROUGE-L-Sum against plain by the strength of the shift."""
    rows = with_settings(results)
    groups = (
        ("0.5B for itself, retrieved passages", "rapid", "0.5b", "retrieved", False),
        ("0.5B for itself, unrelated passages", "rapid", "0.5b", "unrelated", False),
        ("1.5B for itself, retrieved passages", "rapid", "1.5b", "retrieved", False),
        ("1.5B for the 0.5B (upward)", "rapid-up", "0.5b", "retrieved", True),
    )
    lines = []
    for name, preset, model, passages, drafted in groups:
        mine = [row for row in rows if model in row["settings"]["model"]
                and row["settings"]["passages"] == passages
                and ("draft_model" in row["settings"]) == drafted]  # fmt: skip
        variants = [preset, *(f"{preset}@rapid:{eta}" for eta in (5, 10, 20, 40))]
        lines.append([name, *(_quality_cell(mine, variant) for variant in variants)])
    return Grid(["target and drafter", "no shift", *(f"η {eta}" for eta in (5, 10, 20, 40))], lines)


def _quality_cell(rows: Sequence[Row], variant: str) -> str:
    mine = select(rows, variant=variant)
    change = score_change(rows, variant, "rouge_l_sum", BY_PROMPT)
    if not mine or change is None:
        return NOTHING
    return f"{percent(acceptance(mine))}, {plus_minus(change, 3)} ({change.count})"


def retrieval_quality(results: Results, perplexity: Results) -> Grid:
    """Figures of the text."""
    qmsum, _, longbench = (select(results.rows, session=n) for n in (0, 1, 2))
    accuracy = [row["accuracy"] for row in select(longbench, variant="plain")]
    figures = {
        "log_p": interval(score_change(qmsum, "rag", "gold_log_p"), 2, "+"),
        "rouge": interval(score_change(qmsum, "rag", "rouge_l_sum"), 3, "+"),
        "accuracy": f"{100 * sum(accuracy) / len(accuracy):.1f} %",
        "questions": str(len(accuracy)),
        "rag": interval(score_change(longbench, "rag", "accuracy"), 3, "+"),
        "rapid": interval(score_change(longbench, "rapid@rapid:10", "accuracy"), 3, "+"),
    }
    for length in (8, 16, 32):
        rows = select(perplexity.rows, context_length=length * K)
        figures[f"yarn{length}"] = number(_perplexity(select(rows, first=4 * K)), 1)
    return Grid(figures=figures)


def _perplexity(rows: Sequence[Row]) -> float:
    return math.exp(sum(row["loss"] for row in rows) / sum(row["tokens"] for row in rows))


SECTION = Section(
    "Long context: RAPID, MagicDec, TriForce",
    [
        Table(
            "long",
            "Self-speculation at 8K to 32K",
            ["decode_h200_bf16_long", "decode_h200_bf16_long_16x32k"],
            "python -m benchmarks decode --suite longbench_v2 --warm-ups 1 --contexts 8k,16k,32k",
            """Decoding against plain, tokens per step, accepted drafts; qwen2.5-coder-1.5b,
            bf16, greedy, LongBench v2, prompts prefilled before, one or two groups a cell.
            `rapid` drafts ten tokens, at 32K × 16 as many as are expected to save time. The
            queue counts all time, retrieval included. A draft over 4K costs nearly as much as a
            step.""",
            self_speculation,
        ),
        Table(
            "rapid",
            "RAPID's shifted target",
            ["decode_h200_bf16_rapid_quality"],
            "python -m benchmarks decode --suite qmsum --drafts plain,rapid@rapid:10",
            """Accepted of ten drafts, ROUGE-L-Sum against plain (questions); QMSum at 8K,
            temperature 1, qwen2.5-coder. Acceptance is highest at η 10. Quality does not
            change visibly.""",
            rapid_target,
        ),
        Table(
            "long_draft_model",
            "Draft models",
            ["decode_h200_bf16_long_draft_model"],
            "python -m benchmarks decode --warm-ups 1 --drafts plain,sd,rapid",
            """The 0.5B drafts for the 1.5B at 8K to 32K: `sd` over the whole prompt {sd} of plain
            ({sd_accepted} accepted), `rapid` over passages {rapid} ({rapid_accepted}). The 1.5B for
            the 0.5B (`rapid-up`): {rapid-up} ({rapid-up_accepted}).""",
            long_draft_model,
        ),
        Table(
            "retrieval",
            "Passages instead of the document",
            ["decode_h200_bf16_retrieval_quality", "perplexity_h200_bf16_yarn"],
            "python -m benchmarks decode --suite qmsum --drafts plain,rag",
            """From passages alone (`rag`) the 1.5B gives QMSum's gold answers {log_p}
            log-probability per token against the whole 8K, ROUGE-L-Sum {rouge}. LongBench v2 at
            16K, 0.5B: {accuracy} of {questions} right (chance 25 %), `rag` {rag}, RAPID with η
            10 {rapid}. smollm2's perplexity at positions 4K to 8K: {yarn8}, stretched by YaRN
            to 16K {yarn16}, to 32K {yarn32}.""",
            retrieval_quality,
        ),
    ],
)
