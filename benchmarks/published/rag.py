"""Tables of adaptive RAG: IDR2's parts over four policies."""

from collections.abc import Sequence
from statistics import fmean, median

from benchmarks.published.figures import (
    NOTHING,
    Row,
    interval,
    number,
    pairs,
    plus_minus,
    select,
    span,
)
from benchmarks.published.page import Grid, Section, Table
from benchmarks.rag.report import DEMOS, seconds_of
from graft.bench.result_file import Results
from graft.bench.statistics import Estimate, mean

BASE = "off:plain"
CELL = ("set", "question", "policy", "repeat")
VARIANTS = {
    DEMOS: "demonstrations cached",
    "cics:plain": "+ CICS",
    "demos:plain:guided": "demonstrations + IDGR (control)",
    "demos:igpg": "demonstrations + IGPG",
    "cics:igpg:guided": "IDR2: CICS + IDGR + IGPG",
    "exact:auto": "exact reuse + `auto`",
}
# The other sessions ran beside other work: their answers count, their times do not.
QUIET = (0, 2, 4)
POLICIES = {"fl": "FL-RAG, H200", "fs": "FS-RAG", "flare": "FLARE", "dragin": "DRAGIN"}
Pairs = Sequence[tuple[Row, Row]]  # (base, variant) by question


def _mean_ratio(both: Pairs, part: str) -> float:
    """Mean of each question's speed-up, as IDR2 reports it; of decoding per token."""
    times = ((seconds_of(one, part), seconds_of(two, part)) for one, two in both)
    return fmean(one / two for one, two in times if one and two)


def _f1_change(both: Pairs) -> Estimate:
    return mean([100 * (_score(two) - _score(one)) for one, two in both])


def _score(row: Row) -> float:
    """F1; StrategyQA's accuracy, which is left out of a file where it is 0."""
    return row.get("accuracy", 0.0) if row["set"] == "strategyqa" else row["f1"]


def policies(cpu: Results, gpu: Results) -> Grid:
    """A row per variant; two columns per machine and policy, one for each base."""
    by_policy = {title: select(gpu.rows, policy=name) for name, title in POLICIES.items()}
    places = {"DRAGIN, CPU": cpu.rows} | by_policy
    lines, figures = [], _figures(cpu, gpu)
    for variant, name in VARIANTS.items():
        whole, own = ([list(pairs(rows, variant, base, CELL)) for rows in places.values()]
                      for base in (BASE, DEMOS))  # fmt: skip
        lines.append([name])
        for over_nothing, over_demos in zip(whole, own, strict=True):
            lines[-1] += [_cell(over_nothing), _gain(over_demos)]
        figures |= _totals(variant, whole) | _totals(f"{variant}:over", own)
    columns = [column for title in places for column in (title, "over demonstrations")]
    return Grid(["variant", *columns], lines, figures)


def _figures(cpu: Results, gpu: Results) -> dict[str, str]:
    """Figures of the text."""
    plain = select(cpu.rows, variant=BASE)
    both = list(pairs(cpu.rows, "exact:auto", BASE, CELL))
    same = sum(one["output"] == two["output"] for one, two in both)
    guided = [_quiet(list(pairs(select(gpu.rows, policy=policy), f"{DEMOS}:guided", DEMOS, CELL)))
              for policy in POLICIES]  # fmt: skip
    judging = [row["judging_seconds"] for row in select(gpu.rows, policy="dragin")]
    return {
        "f1": number(100 * fmean(row["f1"] for row in plain), 1),
        "seconds": number(fmean(row["total_seconds"] for row in plain), 1),
        "same": f"{same} of {len(both)}",
        "length": span(map(_length, guided)),
        "timed": span(map(len, guided), str),
        "policy": f"{median(judging):.2f} s, up to {max(judging):.1f}",
    }


def _totals(name: str, columns: Sequence[Pairs]) -> dict[str, str]:
    """End to end on the CPU, and of all policies on the GPU."""
    name, totals = name.replace(":", "_"), [_speeds(both)[-1] for both in columns]
    return {name: number(totals[0]), f"{name}_gpu": span(totals[1:])}


def _cell(both: Pairs) -> str:
    return f"{_gain(both)}; {plus_minus(_f1_change(both), 1)}"


def _gain(both: Pairs) -> str:
    """Of a variant with itself nothing."""
    itself = all(one is two for one, two in both)
    return NOTHING if itself else " / ".join(map(number, _speeds(both)))


def _speeds(both: Pairs) -> list[float]:
    """Prefill, decoding per token and end to end."""
    return [_mean_ratio(_quiet(both), part) for part in ("prefill", "decode", "total")]


def _quiet(both: Pairs) -> Pairs:
    """The pairs of quiet sessions, if there are any."""
    return [(one, two) for one, two in both
            if one["session"] in QUIET and one["session"] == two["session"]] or both  # fmt: skip


def _length(both: Pairs) -> float:
    """Tokens of the variants for each token of the base."""
    return sum(two["tokens"] for _, two in both) / sum(one["tokens"] for one, _ in both)


def large(results: Results) -> Grid:
    """Figures of the text: all policies together."""
    figures = {"questions": str(len({(row["set"], row["question"]) for row in results.rows}))}
    for variant in (DEMOS, "cics:plain", "demos:igpg", "cics:igpg:guided", "exact:auto"):
        for name, base in (("", BASE), ("over_", DEMOS)):
            both = list(pairs(results.rows, variant, base, CELL))
            figures[f"{name}{variant}".replace(":", "_")] = _gain(both)
    return Grid(figures=figures)


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
            "benchmarks rag --policies fl,fs,flare,dragin",
            """Prefill / decoding per token / end to end, mean of each question's speed-up: over
            recomputing everything (and change of F1 in points), then over cached demonstrations.
            CICS reuses KV rows approximately, IDGR guides the answer, IGPG drafts from the text.
            CPU: smollm2-135m, fp32, 40 questions of 2Wiki ({seconds} s each, F1 {f1}), {same}
            answers of exact reuse with `auto` (another run) unchanged. H200: qwen2.5-coder-0.5b,
            bf16, four sets, times of {timed} questions, F1 of 100. Guided answers have {length} of
            the tokens in fewer rounds: decoding leaves that out. DRAGIN's policy takes
            {policy}.""",
            policies,
        ),
        Table(
            "large_rag",
            "At an 8B model's price",
            ["rag_h200_bf16_grown"],
            "python -m benchmarks rag --model GROWN --policies fl,fs,flare,dragin",
            """Qwen2.5-Coder-1.5B grown to 7.7B weights, bf16, {questions} questions, all policies:
            demonstrations cached {demos_plain}; over them CICS {over_cics_plain}, IGPG
            {over_demos_igpg}, IDR2 {over_cics_igpg_guided} ({cics_igpg_guided} in all), exact reuse
            with `auto` {over_exact_auto} ({exact_auto}).""",
            large,
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
