"""Tables against other engines."""

from collections.abc import Callable, Sequence
from statistics import geometric_mean, median

from benchmarks.published.figures import (
    Row,
    decode_speed,
    decode_speedup,
    interval,
    mean_speedup,
    number,
    same_outputs,
    select,
    tokens_per_step,
    total_speedup,
)
from benchmarks.published.page import Grid, Section, Table
from graft.bench.result_file import Results
from graft.bench.statistics import Estimate, ratio

Speedup = Callable[..., Estimate | None]
NAMES = {
    "plain": "Graft `plain`",
    "auto": "Graft `auto`",
    "vllm": "vLLM",
    "vllm-ngram": "vLLM, n-gram drafts of 5",
    "llama.cpp": "llama.cpp ¹",
    "transformers": "transformers",
}
BATCHES = (1, 2, 4, 8, 16)
LARGE = "llama-8b"  # the shape of the text's figures
SHAPES = (LARGE, "grown-7.7b", "qwen2.5-1.5b")
MODULES = {
    "gemma-3-4b": "Gemma 3 4B",
    "qwen3-30b-a3b": "Qwen3 30B-A3B",
    "gpt-oss-20b": "gpt-oss 20B in bf16",
}
RECURRENT = "qwen3-next-3b"


# Of texts at a shape's price: little is copied, some, much.
TEXTS = {
    "free": ("mt_bench", "translation", "qa"),
    "some": ("math_reasoning", "rag"),
    "copied": ("summarization", "refactor"),
}


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
        if variant not in ("plain", "auto"):
            figures[variant] = interval(decode_speedup(rows, "auto", variant), 1)
    columns = ["engine", "decode tok/s", "decoding vs `plain`", "end to end vs `plain`",
               "tokens/step", "same tokens"]  # fmt: skip
    return Grid(columns, lines, figures)


def modules(results: Results) -> Grid:
    """Transformers' modules: steps and prefill of one and of 16 sequences relative to vLLM's."""
    parts = []
    for model, name in MODULES.items():
        rows = select(results.rows, model=model)
        ours, theirs = (_by_batch(select(rows, engine=engine)) for engine in ("graft", "vllm"))
        steps, prefill = (
            " and ".join(number(b[key] / a[key]) for a, b in zip(ours, theirs, strict=True))
            for key in ("ms_per_step", "prefill_s")
        )
        before = [f"{row['ms_per_step']:.0f} without graphs"
                  for row in select(rows, engine="graft, not captured")]  # fmt: skip
        one = ", ".join([f"one step {ours[0]['ms_per_step']:.1f} ms", *before])
        parts.append(f"{name} {steps} ({one}), prefill {prefill}")
    ours = _by_batch(select(results.rows, model=RECURRENT))
    steps, prefill = (
        " and ".join(number(row[key]) for row in ours) for key in ("ms_per_step", "prefill_s")
    )
    return Grid(figures={"ratios": "; ".join(parts), "steps": steps, "prefill": prefill})


def experts(results: Results) -> Grid:
    """Speed of presets against plain by what the texts are; of texts that two sessions measured,
    in the later one."""
    figures = {}
    for preset in ("auto", "copy"):
        for kind, categories in TEXTS.items():
            rows = [row for row in results.rows if row["category"] in categories]
            plain, ours = (
                {(row["session"], row["suite"], row["number"]): row["decode_seconds"]
                 for row in select(rows, preset=name)}
                for name in ("plain", preset)
            )  # fmt: skip
            both = {}
            for (session, suite, text), seconds in ours.items():
                both[suite, text] = plain[session, suite, text], seconds
            figures[f"{preset}_{kind}"] = interval(ratio(*zip(*both.values(), strict=True)))
            figures[f"{preset}_{kind}_texts"] = str(len(both))
    return Grid(figures=figures)


def quantised(results: Results) -> Grid:
    """Speed of steps of one and of 16 sequences relative to bf16 and to vLLM's, and of prefill."""
    figures = {}
    ours = select(results.rows, engine="graft")
    base = _by_batch(select(ours, weights="bf16"))
    figures["bf16"] = " and ".join(number(row["ms_per_step"]) for row in base)
    for weights in ("fp8", "int4"):
        mine = _by_batch(select(ours, weights=weights))
        theirs = _by_batch(select(results.rows, engine="vllm", weights=weights))
        for name, key, other in (
            ("steps", "ms_per_step", base), ("prefill", "prefill_s", base),
            ("vllm", "ms_per_step", theirs), ("prefill_vllm", "prefill_s", theirs),
        ):  # fmt: skip
            ratios = (b[key] / a[key] for a, b in zip(mine, other, strict=True))
            figures[f"{weights}_{name}"] = " and ".join(map(number, ratios))
    return Grid(figures=figures)


def _by_batch(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["batch"])


def plain_steps(results: Results) -> Grid:
    """Graft's and vLLM's steps, and the ratios of their speeds in steps and prefill."""
    ratios = {}
    lines: dict[tuple[int, int], list[str]] = {}
    for model in SHAPES:
        for cell in sorted({(row["context"], row["batch"]) for row in results.rows}):
            named = {"model": model, "context": cell[0], "batch": cell[1]}
            found = [
                [row for row in select(results.rows, engine=engine, **named) if "error" not in row]
                for engine in ("graft", "vllm")
            ]
            line = lines.setdefault(cell, [f"{cell[0]:,} × {cell[1]}"])
            if not all(found):
                line += ["–"] * 3
                continue
            (ours,), (theirs,) = found
            for name in ("ms_per_step", "prefill_s"):
                ratios[(model, *cell, name)] = theirs[name] / ours[name]
            steps = f"{ours['ms_per_step']:.2f} ({theirs['ms_per_step']:.2f})"
            line += [
                steps,
                *(number(ratios[(model, *cell, x)]) for x in ("ms_per_step", "prefill_s")),
            ]
    steps = {key: ratio for key, ratio in ratios.items() if key[0] == LARGE and "step" in key[3]}
    prefill = [ratio for key, ratio in ratios.items() if key[0] == LARGE and "prefill" in key[3]]
    one = steps.pop((LARGE, 2048, 1, "ms_per_step"))
    figures = {
        "one": number(one),
        "others": f"{min(steps.values()):.2f} to {max(steps.values()):.2f}",
        "prefill": f"{min(prefill):.2f} to {max(prefill):.2f}",
    }
    columns = ["context × batch"]
    for model in SHAPES:
        columns += [f"{model}: step, ms (vLLM)", "speed / vLLM", "prefill / vLLM"]
    return Grid(columns, list(lines.values()), figures)


def grown(results: Results) -> Grid:
    """Figures of the text."""
    short = select(results.rows, suite="spec_bench", temperature=0)
    by_category = {name: select(short, category=name) for name in {r["category"] for r in short}}
    found = {name: _against_best(rows) for name, rows in sorted(by_category.items())}
    queue, squad, edits, rewritten = (
        select(results.rows, suite=name) for name in ("queue", "squad", "code_edit", "rewrite")
    )
    differ = [same_outputs(select(results.rows, suite=name), variant)
              for name in sorted({row["suite"] for row in results.rows})
              for variant in ("auto", "eagle3", "casd", "rasd-pld")]  # fmt: skip
    return Grid(
        figures={
            "spec_bench": ", ".join(f"{name} {each}" for name, each in found.items()),
            "all": _against_best(short),
            "squad": _against_best(squad),
            "edit": _against_best(edits),
            "queue": _against_best(queue, total_speedup),
            "ngram": mean_speedup(rewritten, "auto", "vllm-ngram16"),
            "suffix": mean_speedup(rewritten, "auto", "vllm-suffix"),
            "differ": str(sum(count - same for same, count in differ)),
            "answers": str(sum(count for _, count in differ)),
        }
    )


def _against_best(rows: list[Row], speedup: Speedup = decode_speedup) -> str:
    """Speeds of `plain` and `auto` over the faster way of vLLM."""
    best = max(("vllm", "vllm-ngram"), key=lambda name: speedup(rows, name).mean)
    return " / ".join(number(speedup(rows, name, best).mean) for name in ("plain", "auto"))


CLIENTS, KINDS = (1, 4, 16, 64), ("chat", "rag", "summaries", "edits")


def inside_engines(vllm: Results, sglang: Results, grown: Results) -> Grid:
    """Tokens per second with drafts against the same engine without, by text and clients."""

    def against(rows: list[Row], clients: int, mine: str, plain: str, kind: str) -> float:
        speeds = {
            (row["session"], row["repeat"], row["server"]): row["tokens_per_second"]
            for row in select(rows, set=kind, concurrency=clients)
        }
        times = [each for *each, name in speeds if name == mine]
        return geometric_mean(speeds[*each, mine] / speeds[*each, plain] for each in times)

    def listed(rows: list[Row], mine: str, plain: str, clients: Sequence[int]) -> str:
        return ", ".join(
            " ".join(number(against(rows, each, mine, plain, kind)) for each in clients)
            for kind in KINDS
        )

    figures = {
        "vgraft": listed(vllm.rows, "vgraft", "vplain", CLIENTS),
        "vngram": listed(vllm.rows, "vngram", "vplain", CLIENTS),
        "chains": listed(sglang.rows, "chains", "plain", CLIENTS),
        "own": listed(vllm.rows, "own", "vplain", CLIENTS[:3]),
        "grown_vgraft": listed(grown.rows, "vgraft", "vplain", CLIENTS[1:3]),
        "grown_chains": listed(grown.rows, "chains", "plain", CLIENTS[1:3]),
    }
    found = (against(sglang.rows, n, "sngram", "plain", kind) for n in CLIENTS for kind in KINDS)
    figures["sngram"] = number(max(found))
    return Grid(figures=figures)


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


def packed(speed: Results, large: Results, small: Results) -> Grid:
    """Graft over llama.cpp on the same GGUF files: bare steps by file, then answers."""
    figures: dict[str, list[str]] = {"decode": [], "prefill": []}
    for file in dict.fromkeys(row["file"] for row in speed.rows):
        (ours,), (theirs,) = (
            select(speed.rows, file=file, engine=each) for each in ("graft", "llama.cpp")
        )
        for name in ("decode", "prefill"):
            figures[name].append(number(ours[f"{name}_wall"] / theirs[f"{name}_wall"]))
    found = {name: ", ".join(each) for name, each in figures.items()}
    for name, results in (("large", large), ("small", small)):
        for variant in ("plain", "auto"):
            estimate = decode_speedup(results.rows, variant, "llama.cpp")
            found[f"{name}_{variant}"] = interval(estimate)
        copied = select(results.rows, category="summarization")
        found[f"{name}_summaries"] = mean_speedup(copied, "auto", "llama.cpp")
        found[f"{name}_lookup"] = number(
            decode_speedup(results.rows, "llama.cpp-lookup", "llama.cpp").mean
        )
    return Grid(figures=found)


def vllm_proposer(results: Results, load: Results, served: Results) -> Grid:
    """Graft's proposer inside vLLM, and `graft serve` with and without drafts, by requests."""
    (loaded,) = load.rows
    bases = ("plain", "ngram")
    found: dict[str, list[str]] = {name: [] for name in (*bases, "served")}
    for count in (1, 4, 8):
        rows = [_as_decode_row(row) for row in select(results.rows, concurrency=count)]
        for base in bases:
            found[base].append(interval(decode_speedup(rows, "graft", base)))
        found["served"].append(_served(served, count))
    figures = {name: "; ".join(each) for name, each in found.items()}
    counted = ("disconnected", "preemptions", "different", "completed")
    return Grid(figures=figures | {name: str(loaded[name]) for name in counted})


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
            prompt. ¹ unrounded GGUF weights. Prefill is no faster than vLLM's.""",
            cpu_engines,
        ),
        Table(
            "packed",
            "GGUF files as they are",
            ["packed_n1_gguf", "decode_n1_gguf_qwen15", "decode_n1_gguf_smollm2"],
            "python -m benchmarks.packed.speed FILES --llama PYTHON",
            """Two CPU cores against llama.cpp (llama-cpp-python 0.3.36, built here), same files:
            Qwen2.5-Coder 1.5B Q4_K_M, 0.5B Q4_K_M, 0.5B Q8_0, SmolLM2 Q4_1. Plain steps {decode},
            prefill {prefill}. Answers of Spec-Bench, five categories: the 1.5B (10 prompts) `plain`
            {large_plain}, `auto` {large_auto}, summaries {large_summaries}; SmolLM2 (20)
            {small_plain}, {small_auto}, {small_summaries}.
            llama.cpp's own prompt lookup has {large_lookup} and {small_lookup} of its speed.""",
            packed,
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
            """vLLM 0.24, random weights, bf16, 128 tokens, in turns. llama-8b from 2,048 × 16 to
            32,768 × 4 is of the day before, better of two. In prefill of 32K, attention takes 49 %
            of llama-8b's time and 58 % of the 1.5B's, at 430 to 460 TFLOP/s.""",
            plain_steps,
        ),
        Table(
            "grown",
            "Drafts at an 8B model's price",
            ["decode_h200_bf16_grown_vllm"],
            "python -m benchmarks decode --engines vllm,vllm-ngram",
            """Qwen2.5-Coder-1.5B grown to 7.7B weights with an EAGLE-3 head grown alike, bf16,
            greedy; `plain` / `auto` against the better of vLLM's plain decoding and n-gram drafts
            of 5. Decoding of Spec-Bench, 24 prompts, one at a time: {spec_bench}; all {all}. SQuAD
            (10) {squad}, Aider's code edits (5, 384 tokens, graphs captured on the way) {edit}.
            72 prompts queued for 16 places, prefill included: {queue}. Without a head, ten files
            rewritten:
            {ngram} times vLLM's n-gram drafts of 16, {suffix} times its suffix decoding.
            {differ} of {answers} answers of four presets differ from `plain`.""",
            grown,
        ),
        Table(
            "modules",
            "Other decoders on an H200",
            ["steps_h200_bf16_modules"],
            "benchmarks.decode.plain_steps",
            """Random weights, bf16, steps in captured graphs against vLLM 0.24, 2,048 × 1 and × 16:
            {ratios}. A Qwen3-Next of 36 layers and 2.6B weights without experts: {steps} ms,
            prefill {prefill} s; vLLM does not start with that shape.""",
            modules,
        ),
        Table(
            "experts",
            "Drafts for a mixture of experts on an H200",
            ["given_h200_bf16_moe"],
            "benchmarks.decode.given_text run --shape qwen3-30b-a3b",
            """Qwen3 30B-A3B, random weights, bf16, texts of Qwen2.5-Coder-1.5B made the likeliest,
            decoding against plain with `auto` and `copy`: copied texts ({auto_copied_texts})
            {auto_copied} and {copy_copied}; documents, mathematics ({auto_some_texts}) {auto_some}
            and {copy_some}; free text {auto_free} ({auto_free_texts}) and {copy_free}
            ({copy_free_texts}).""",
            experts,
        ),
        Table(
            "quantised",
            "Quantised weights on an H200",
            ["steps_h200_quantised"],
            "benchmarks.decode.plain_steps",
            """8B shape, 2,048 × 1 and × 16. In bf16 a step takes {bf16} ms. FP8 is
            {fp8_steps} times as fast ({fp8_vllm} of vLLM with the same files), INT4 {int4_steps}
            ({int4_vllm}); prefill {fp8_prefill} ({fp8_prefill_vllm}), {int4_prefill}
            ({int4_prefill_vllm}): vLLM rounds activations to 8 bits, Graft does not.""",
            quantised,
        ),
        Table(
            "inside",
            "Drafts in vLLM 0.24 and SGLang 0.5.17 on an H200",
            ["side_h200_bf16_vllm", "side_h200_bf16_sglang", "side_h200_bf16_grown"],
            "benchmarks.serve.side_by_side",
            """Speed against no drafts: chat, RAG, summaries, edits with 1 4 16 64 clients (1.5B;
            mended since). vLLM: {vgraft}; its n-grams {vngram}. SGLang: chains {chains}; NGRAM up
            to {sngram}. 8B price, 4 16: {grown_vgraft}; {grown_chains}. `graft serve` against vLLM,
            1 4 16: {own}.""",
            inside_engines,
        ),
    ],
)
