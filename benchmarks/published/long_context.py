"""Tables of long contexts: self-speculation, draft models, RAPID's target, quality."""

import math
from collections.abc import Sequence

from benchmarks.published.figures import (
    NOTHING,
    Row,
    acceptance,
    decode_speedup,
    interval,
    mean_speedup,
    number,
    percent,
    plus_minus,
    score_change,
    select,
    tokens_per_step,
    with_settings,
)
from benchmarks.published.page import Grid, Section, Table
from graft.bench.result_file import Results

K = 1024
SELF, SMALLER = "the target", "the 0.5B"  # who drafts
CELLS = ((31, "dialogue"), (16, "dialogue"), (16, "qmsum"), (8, "dialogue"), (8, "qmsum"))
SUITES = {"dialogue": "dialogues", "qmsum": "QMSum"}
COLUMNS = (
    ("`copy`", SELF, "copy"),
    ("`auto`", SELF, "auto"),
    ("`magicdec`", SELF, "magicdec?draft_tokens=3"),
    ("`triforce`", SELF, "triforce?draft_tokens=6"),
    ("`rapid`, 4 tokens", SELF, "rapid?draft_tokens=4&retrieved=2048"),
    ("10", SELF, "rapid?draft_tokens=10&retrieved=2048"),
    ("0.5B: `sd`, 4 tokens", SMALLER, "sd?draft_tokens=4"),
    ("`rapid`, 4 tokens", SMALLER, "rapid?draft_tokens=4&retrieved=2048"),
    ("10", SMALLER, "rapid?retrieved=2048"),
)
LONGEST = {"suite": "dialogue", "context": 31 * K, "batch": 1}
BY_PROMPT = ("prompts",)  # sessions of one setting are one sample


def at_large_cost(
    itself: Results, smaller: Results, magicdec: Results, dialled: Results, stacks: Results
) -> Grid:
    """A row per context and suite; in the text batches, dialled drafts and other engines' steps."""
    lines, drafted = [], {SELF: itself.rows, SMALLER: smaller.rows}
    for context, suite in CELLS:
        cell = {"context": context * K, "suite": suite, "batch": 1}
        rows = {who: select(each, **cell) for who, each in drafted.items()}
        step = [_step_ms(row) for row in select(rows[SELF], variant="plain")]
        cells = (_cell(rows[who], variant) for _, who, variant in COLUMNS)
        name = f"{context}K, {SUITES[suite]}"
        lines.append([name, number(sum(step) / len(step), 1), *cells])
    columns = ["context", "plain step, ms", *(title for title, *_ in COLUMNS)]
    figures = _longest(itself.rows, smaller.rows) | _batches(magicdec.rows, dialled.rows)
    return Grid(columns, lines, figures | _stacks(stacks))


def _longest(*drafted: Sequence[Row]) -> dict[str, str]:
    """Of single prompts of 31K."""
    itself, smaller = (select(rows, **LONGEST) for rows in drafted)
    variants = {f"rapid{n}": f"rapid?retrieved={n}" for n in (1024, 2048, 4096)}
    return {name: mean_speedup(itself, variant) for name, variant in variants.items()} | {
        "rapid_2": interval(decode_speedup(itself, "rapid?draft_tokens=2&retrieved=2048")),
        "rapid_4": interval(decode_speedup(itself, "rapid?draft_tokens=4&retrieved=2048")),
        "small_rapid": interval(decode_speedup(smaller, "rapid?draft_tokens=4&retrieved=2048")),
        "small_sd": interval(decode_speedup(smaller, "sd?draft_tokens=4")),
        "fused": mean_speedup(itself, "rapid+copy?retrieved=2048"),
        "dialled": mean_speedup(itself, "rapid@0.8?retrieved=2048"),
        "small_dialled": mean_speedup(smaller, "rapid@0.8?draft_tokens=4&retrieved=2048"),
        "sd_dialled": mean_speedup(smaller, "sd@0.8?draft_tokens=4"),
    }


def _batches(magicdec: Sequence[Row], dialled: Sequence[Row]) -> dict[str, str]:
    batches = ((16, 4), (16, 8), (31, 4))
    figures = {"magicdec": ", ".join(_by_batch(magicdec, "magicdec", batches))}
    for name, variant in (("low", "longspec@0.5"), ("high", "longspec@0.8")):
        cells = ((8, 1), (16, 1), *batches)
        figures[f"longspec_{name}"] = ", ".join(_by_batch(dialled, variant, cells))
        found = tokens_per_step(select(dialled, variant=variant, batch=1))
        figures[f"tokens_{name}"] = number(found, 1)
    return figures


def _by_batch(rows: Sequence[Row], variant: str, cells: Sequence[tuple[int, int]]) -> list[str]:
    return [
        mean_speedup(select(rows, context=context * K, batch=batch), variant)
        for context, batch in cells
    ]


def _stacks(results: Results) -> dict[str, str]:
    """Steps of other engines, in milliseconds."""
    return {row["engine"]: number(row["ms_per_step"], 1) for row in results.rows}


def _cell(rows: Sequence[Row], variant: str) -> str:
    """Speed-up, tokens per step, accepted drafts."""
    mine = select(rows, variant=variant)
    if not mine:
        return NOTHING
    found = mean_speedup(rows, variant), number(tokens_per_step(mine)), percent(acceptance(mine))
    return ", ".join(found)


def _step_ms(row: Row) -> float:
    return 1e3 * row["decode_seconds"] / row["steps"]


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
            "At an 8B model's price, 32K to 124K",
            [
                "decode_h200_bf16_grown_long",
                "decode_h200_bf16_grown_long_small",
                "decode_h200_bf16_grown_long_magicdec",
                "decode_h200_bf16_grown_long_dialled",
                "steps_h200_bf16_grown_baselines",
            ],
            "benchmarks.decode.cells run --model GROWN --draft-model qwen2.5-coder-0.5b",
            """Decoding against plain, tokens per step, accepted drafts. Qwen2.5-Coder-1.5B grown
            to 7.7B weights and 448 KiB of KV a token, bf16, greedy: 8K, 16K and 31K cost what 32K,
            64K and 124K cost Llama-3.1-8B. 8 prompts at 31K, else 4; 2,048 retrieved tokens. The
            0.5B (6 and 2 prompts), batches and LongSpec: from a run whose plain step took 9.8 ms at
            31K, so these ratios are a tenth too high. At 31K `rapid` with 2 tokens {rapid_2}, as
            many as pay after 1,024, 2,048, 4,096 retrieved {rapid1024}, {rapid2048}, {rapid4096},
            with copies {fused}; each draft token right in 80 % of cases {dialled}, 4 of the 0.5B
            {small_dialled}, `sd` {sd_dialled}. Batches of 16K × 4, × 8 and 31K × 4: `magicdec`
            {magicdec}. LongSpec dialled to {tokens_low} and {tokens_high} tokens per step, at 8K,
            16K and in these: {longspec_low} and {longspec_high}. A step at 31K takes transformers
            {transformers-eager} ms (SDPA {transformers-sdpa}).""",
            at_large_cost,
        ),
        Table(
            "rapid",
            "RAPID's shifted target",
            ["decode_h200_bf16_rapid_quality"],
            "python -m benchmarks decode --suite qmsum --drafts plain,rapid@rapid:10",
            """Accepted of ten drafts, ROUGE-L-Sum against plain (questions); QMSum at 8K,
            temperature 1, qwen2.5-coder. Quality does not change visibly.""",
            rapid_target,
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
