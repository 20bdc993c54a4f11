"""Tables of `auto` and of the other presets by suite."""

from collections.abc import Sequence

from benchmarks.published.figures import (
    NOTHING,
    Row,
    decode_speedup,
    interval,
    mean_speedup,
    number,
    pairs,
    same_outputs,
    select,
    span,
    tokens_per_step,
    total_speedup,
    with_settings,
)
from benchmarks.published.page import Grid, Section, Table
from graft.bench.result_file import Results
from graft.bench.statistics import Estimate, ratio

SUITES = {
    "spec_bench": "Spec-Bench",
    "humaneval": "HumanEval",
    "medqa": "MedQA",
    "qmsum": "QMSum, 6K",
    "spider": "Spider",
    "squad": "SQuAD",
}
FIXED = ("pld", "copy", "igpg")
FIVE = ("spec_bench", "humaneval", "squad", "spider", "medqa")
SLOTS = (2, 4, 8)  # of batches
PLACES = (*SLOTS, 16, 64)  # of queues


def auto_by_suite(results: Results) -> Grid:
    """Greedy and sampled."""
    lines, means = [], {0: [], 1: []}
    for suite, name in SUITES.items():
        cells = []
        for temperature in (0, 1):
            rows = select(results.rows, suite=suite, temperature=temperature)
            found = decode_speedup(rows, "auto")
            means[temperature].append(found.mean)
            step = number(tokens_per_step(select(rows, variant="auto")))
            copy = interval(decode_speedup(rows, "copy"))
            cells += [f"{interval(found)}, {step}", copy, str(found.count)]
        lines.append([name, *cells])
    columns = ["suite", "`auto` greedy, tokens/step", "`copy` greedy", "prompts",
               "`auto` temperature 1, tokens/step", "`copy` temperature 1", "prompts"]  # fmt: skip
    return Grid(columns, lines, {"greedy": span(means[0]), "sampled": span(means[1])})


def auto_in_batches(queues: Results, batches: Results) -> Grid:
    """Queues by the time of all answers, batches by their decoding."""
    lines, figures = [], {}
    for temperature, name in ((0, "greedy"), (1, "temperature 1")):
        found = [_queue(queues, slots, temperature) for slots in PLACES]
        figures["greedy" if temperature == 0 else "sampled"] = span(each.mean for each in found)
        lines.append([f"queue, {name}", *map(interval, found)])
    rows = with_settings(batches)
    natural = [row for row in rows if not row["settings"].get("ignore_eos")]
    equal = [row for row in rows if row["settings"].get("ignore_eos")]
    for name, mine in (
        ("batch, greedy", select(natural, temperature=0)),
        ("batch of equal lengths, temperature 1", equal),
    ):
        found = [decode_speedup(select(mine, batch=batch), "auto") for batch in SLOTS]
        lines.append([name, *map(interval, found), NOTHING, NOTHING])
        figures["equal"] = span(each.mean for each in found)
    return Grid(["", "2 at a time", "4", "8", "16", "64"], lines, figures)


def _queue(results: Results, slots: int, temperature: int) -> Estimate:
    """Seconds per token of whole queues, as answers end at different times."""
    rows = [row for row in select(with_settings(results), temperature=temperature)
            if row["settings"]["load_options"]["max_batch"] == slots]  # fmt: skip
    both = [[row["total_seconds"] / row["tokens"] for row in pair] for pair in pairs(rows, "auto")]
    return ratio(*zip(*both, strict=True))


def cpu_presets(
    presets: Results, suites: Results, long: Results, draft_model: Results, newest: Results
) -> Grid:
    """Decoding against plain on two cores."""
    by_variant = {
        variant: ", ".join(
            mean_speedup(select(suites.rows, suite=suite), variant) for suite in FIVE
        )
        for variant in ("pld", "rest", "store", "auto", "auto+store")
    }
    same = [same_outputs(each.rows, "auto") for each in (suites, long, draft_model, newest)]
    qwen = [select(draft_model.rows, suite=suite) for suite in ("humaneval", "spec_bench")]
    fixed = select(presets.rows, temperature=0)
    figures = {
        **by_variant,
        "fixed": ", ".join(mean_speedup(fixed, each) for each in FIXED),
        "greedy": interval(decode_speedup(select(newest.rows, temperature=0), "auto")),
        "sampled": interval(decode_speedup(select(newest.rows, temperature=1), "auto")),
        "spec": interval(decode_speedup(long.rows, "auto")),
        "total": interval(total_speedup(long.rows, "auto")),
        "same": f"{sum(one for one, _ in same)} of {sum(two for _, two in same)}",
        "sd": " and ".join(mean_speedup(rows, "sd") for rows in qwen),
        "qwen": " and ".join(mean_speedup(rows, "auto") for rows in qwen),
    }
    return Grid(figures=figures)


def presets_by_suite(results: Results) -> Grid:
    """Tokens per step, greedy / temperature 1."""
    names = SUITES
    variants = ("pld", "copy", "igpg", "eagle2", "longspec", "casd", "rasd-pld", "magicdec",
                "triforce", "auto")  # fmt: skip
    lines = []
    for suite, name in names.items():
        rows = select(results.rows, suite=suite)
        prompts = {row["prompts"][0] for row in select(rows, variant="plain")}
        cells = (_both(select(rows, variant=variant)) for variant in variants)
        lines.append([f"{name} ({len(prompts)})", *cells])
    return Grid(["suite (prompts)", *(f"`{each}`" for each in variants)], lines)


def _both(rows: Sequence[Row]) -> str:
    found = [tokens_per_step(select(rows, temperature=temperature)) for temperature in (0, 1)]
    return " / ".join(number(each) for each in found if each) or NOTHING


def draft_model(results: Results, fusion: Results) -> Grid:
    """Decoding against plain, tokens per step, of a 1.5B model drafted by a 0.5B one."""
    lines = []
    for variant in ("pld", "rest", "sd", "casd", "auto"):
        cells = []
        for suite in FIVE:
            rows = select(results.rows, suite=suite)
            step = tokens_per_step(select(rows, variant=variant))
            cells.append(f"{interval(decode_speedup(rows, variant))}, {number(step)}")
        lines.append([f"`{variant}`", *cells])
    rows = [{**row, "prompts": [row["prompt"]]} for row in select(fusion.rows, part="timed")]
    figures = {
        f"{variant}_{suite}": number(tokens_per_step(select(rows, suite=suite, variant=variant)))
        for suite in ("humaneval", "medqa")
        for variant in ("tree", "casd", "rasd-pld", "rasd-rest", "rasd-rest-unpruned")
    }
    return Grid(["preset", *(SUITES[suite] for suite in FIVE)], lines, figures)


def exact_answers(*models: Results) -> Grid:
    """How many answers differ from plain decoding's."""
    drafted = [row for each in models for row in each.rows if row["preset"] != "plain"]
    figures = {name: f"{sum(row[name] for row in drafted):,}" for name in ("answers", "differ")}
    return Grid(figures={**figures, "accepted": f"{sum(row['accepted'] for row in drafted):,}"})


AUTO = Section(
    "`auto` against plain decoding",
    [
        Table(
            "exact",
            "Same text",
            ["exact_h200_bf16", "exact_h200_bf16_qwen15", "exact_h200_quantised_qwen15"],
            "python -m benchmarks.decode.exact --questions FILE",
            """`auto`, `copy`, `casd`, `eagle2`, `sd` and all mixed, smollm2-135m, 480 questions;
            with `eagle3`, Qwen2.5-Coder-1.5B, 200 in bf16, 48 in FP8 and INT4; greedy and at
            temperature 1, 16 at once and one at a time: {differ} of {answers} answers differ,
            {accepted} drafts accepted.""",
            exact_answers,
        ),
        Table(
            "auto",
            "By suite on an H200",
            ["decode_h200_bf16_auto"],
            "python -m benchmarks decode --suite SUITE --drafts plain,auto,copy --temperatures 0,1",
            """Decoding against plain with 95 % intervals, smollm2-135m with its heads, bf16, 128
            tokens, interleaved by prompt.""",
            auto_by_suite,
        ),
        Table(
            "queues",
            "Queues and batches",
            ["decode_h200_bf16_queues", "decode_h200_bf16_batches"],
            "benchmarks decode --drafts plain,auto --batches 2,4,8",
            """Spec-Bench, 192 or 240 prompts a queue, 72 or 192 in batches. A queue refills free
            places, as a server does; a batch waits for its slowest answer.""",
            auto_in_batches,
        ),
        Table(
            "cpu",
            "Two CPU cores",
            [
                "decode_n1_fp32_presets",
                "decode_n1_bf16_datastore",
                "decode_n1_bf16_spec_bench",
                "decode_n1_bf16_draft_model",
                "decode_n1_fp32_auto",
            ],
            "python -m benchmarks decode --suite SUITE --drafts plain,pld,store:STORE,auto",
            """Decoding against plain, bf16, 12 prompts of Spec-Bench and 6 each of HumanEval,
            SQuAD, Spider, MedQA, a datastore of 49M tokens: `auto` {auto}, with the store
            {auto+store}, `store` {store}, `pld` {pld}, `rest` {rest}; in fp32 `pld`, `copy`, `igpg`
            {fixed}: each row of a step costs about the same. Newer: fp32, 12 prompts, {greedy},
            {sampled} at temperature 1; bf16, 66 prompts, {spec}, end to end {total}. {same} answers
            equal plain's. 1.5B drafted by 0.5B, HumanEval and Spec-Bench: `sd` {sd}, `auto`
            {qwen}.""",
            cpu_presets,
        ),
    ],
)
DRAFTERS = Section(
    "Drafters compared",
    [
        Table(
            "presets",
            "Tokens per step, all presets",
            ["decode_h200_bf16_presets"],
            "python -m benchmarks decode --suite SUITE --drafts plain,auto,pld,...",
            """Greedy / temperature 1, smollm2-135m, bf16. Other work shared the GPU, so no times.
            `auto` drafts only what is expected to save time, fixed trees more.""",
            presets_by_suite,
        ),
        Table(
            "draft_model",
            "A draft model on an H200",
            ["decode_h200_bf16_draft_model", "fusion_h200_bf16_draft_model"],
            "python -m benchmarks decode --suite SUITE --draft-model qwen2.5-coder-0.5b",
            """qwen2.5-coder-1.5b, decoding against plain, tokens per step; greedy, 14 prompts a
            suite (24 of Spec-Bench; 7 for `auto` except on MedQA). Drafting a tree takes longer
            than the steps it saves. Retrieval fused into the model's tree: {tree_humaneval} to
            {casd_humaneval} (`casd`) tokens per step on HumanEval, {tree_medqa} to {rasd-pld_medqa}
            (`rasd-pld`) on MedQA. Pruning costs none ({rasd-rest_humaneval} and
            {rasd-rest-unpruned_humaneval}).""",
            draft_model,
        ),
    ],
)
