"""Tables of adaptive RAG: IDR2's parts over four policies."""

from collections.abc import Sequence
from statistics import fmean

from benchmarks.published.figures import (
    Row,
    interval,
    number,
    pairs,
    plus_minus,
    select,
    span,
)
from benchmarks.published.page import Grid, Section, Table
from graft.bench.result_file import Results
from graft.bench.statistics import Estimate, mean

BASE = "off:plain"
CELL = ("set", "question", "policy", "repeat")
VARIANTS = {
    "demos:plain": "demonstrations cached",
    "cics:plain": "+ CICS",
    "demos:plain:guided": "demonstrations + IDGR (control)",
    "demos:igpg": "demonstrations + IGPG",
    "cics:igpg:guided": "IDR2: CICS + IDGR + IGPG",
    "exact:auto": "exact reuse + `auto`",
}
# The other sessions ran beside other work: their answers count, their times do not.
QUIET = (0, 2, 4)
POLICIES = {"fl": "FL-RAG, H200", "fs": "FS-RAG", "flare": "FLARE", "dragin": "DRAGIN"}


def _mean_ratio(both: Sequence[tuple[Row, Row]], part: str) -> float:
    """Mean of each question's speed-up, as IDR2 reports it."""
    name = f"{part}_seconds"
    return fmean(one[name] / two[name] for one, two in both if one.get(name) and two.get(name))


def _f1_change(both: Sequence[tuple[Row, Row]]) -> Estimate:
    return mean([100 * (_score(two) - _score(one)) for one, two in both])


def _score(row: Row) -> float:
    """F1; StrategyQA's accuracy, which is left out of a file where it is 0."""
    return row.get("accuracy", 0.0) if row["set"] == "strategyqa" else row["f1"]


def policies(cpu: Results, gpu: Results) -> Grid:
    """A row per variant, a column per policy and machine."""
    lines, figures = [], {}
    for variant, name in VARIANTS.items():
        columns = [list(pairs(cpu.rows, variant, BASE, CELL))]
        for policy in POLICIES:
            columns.append(list(pairs(select(gpu.rows, policy=policy), variant, BASE, CELL)))
        lines.append([name, *map(_cell, columns)])
        totals = [_speeds(both)[-1] for both in columns]
        figures[variant.replace(":", "_")] = number(totals[0])
        figures[f"{variant.replace(':', '_')}_gpu"] = span(totals[1:])
    plain = select(cpu.rows, variant=BASE)
    figures["f1"] = number(100 * fmean(row["f1"] for row in plain), 1)
    figures["seconds"] = number(fmean(row["total_seconds"] for row in plain), 1)
    both = list(pairs(cpu.rows, "exact:auto", BASE, CELL))
    same = sum(one["output"] == two["output"] for one, two in both)
    figures["same"] = f"{same} of {len(both)}"
    return Grid(["variant", "DRAGIN, CPU", *POLICIES.values()], lines, figures)


def _cell(both: Sequence[tuple[Row, Row]]) -> str:
    return f"{' / '.join(map(number, _speeds(both)))}; {plus_minus(_f1_change(both), 1)}"


def _speeds(both: Sequence[tuple[Row, Row]]) -> list[float]:
    """Prefill, decode and end to end of the pairs of quiet sessions, if there are any."""
    quiet = [(one, two) for one, two in both
             if one["session"] in QUIET and one["session"] == two["session"]]  # fmt: skip
    return [_mean_ratio(quiet or both, part) for part in ("prefill", "decode", "total")]


def shared_cache(shared: Results, cpu: Results, gpu: Results) -> Grid:
    """Figures of the text."""
    rows = select(shared.rows, variant="cics+all:plain")
    hits, passages = (sum(row.get(name, 0) for row in rows)
                      for name in ("passage_hits", "passages"))  # fmt: skip
    both = list(pairs(shared.rows, "cics+all:plain", "demos:plain", CELL))
    figures = {
        "questions": str(len(rows)),
        "hits": f"{hits:,} of {passages:,}",
        "megabytes": f"{max(row['cache_bytes'] for row in rows) / 1e6:.0f}",
        "f1": interval(_f1_change(both), 1, "+"),
    }
    for where, results in (("cpu", cpu), ("gpu", gpu)):
        for variant, name in (("exact", "exact"), ("cics", "cics"), ("blend+0.15", "blend15"),
                              ("blend+0.5", "blend50")):  # fmt: skip
            mine = [row["divergence"] for row in select(results.rows, variant=variant)]
            figures[f"{where}_{name}"] = f"{fmean(mine):.1g}" if any(mine) else "0"
    return Grid(figures=figures)


SECTION = Section(
    "Adaptive RAG: IDR2",
    [
        Table(
            "policies",
            "Policies and variants",
            ["rag_n1_fp32_dragin", "rag_h200_bf16_policies"],
            "python -m benchmarks rag --data SETS --policies fl,fs,flare,dragin",
            """Prefill / decode / end to end against recomputing everything, mean of each question's
            speed-up; change of F1 in points. IDR2 has three parts: CICS reuses KV rows
            approximately, IDGR guides the answer, IGPG drafts from the text. CPU: smollm2-135m,
            fp32, 40 questions of 2Wiki ({seconds} s each, F1 {f1}), {same} answers of exact reuse
            with `auto` unchanged. H200: qwen2.5-coder-0.5b, bf16, four sets, times of 78 or 79
            questions, F1 of 100. Prefill is short there, so drafting saves most; part of IDR2's
            gain is shorter answers.""",
            policies,
        ),
        Table(
            "shared_cache",
            "Reuse across questions",
            ["rag_h200_bf16_shared_cache", "rag_n1_fp32_divergence", "rag_h200_fp32_divergence"],
            "python -m benchmarks rag --policies fl",
            """One cache for {questions} questions of FL-RAG had {hits} passages, in at most
            {megabytes} MB; F1 {f1}. KL divergence to exact prefill, nats per token, smollm2 /
            qwen 0.5B: exact {cpu_exact} / {gpu_exact}, CICS {cpu_cics} / {gpu_cics}, blended
            0.15 {cpu_blend15} / {gpu_blend15}, 0.5 {cpu_blend50} / {gpu_blend50}.""",
            shared_cache,
        ),
    ],
)
