"""The page: what was found, one section per topic, what falls short."""

from collections.abc import Mapping

from benchmarks.published import engines, heads, long_context, machine, rag, suites
from benchmarks.published.page import Section, bullets, paragraph, table_markdown

SECTIONS = (
    engines.SECTION,
    suites.AUTO,
    suites.DRAFTERS,
    long_context.SECTION,
    heads.SECTION,
    rag.SECTION,
    machine.SECTION,
)
INTRODUCTION = """`python -m benchmarks.published` writes this page from `results/` (a test compares
them). Ratios above 1 mean faster: geometric means of one run, paired by prompt, with 95 %
bootstrap intervals (unreliable below 8 prompts). Suites use odd-numbered prompts; even
ones served for tuning. Models: SmolLM2-135M-Instruct, Qwen2.5-Coder 0.5B and 1.5B. Headers
of files hold their settings. Experiments: [log.md](log.md); methods:
[benchmarks.md](benchmarks.md)."""
FOUND = (
    """**`auto` against plain decoding.** On an H200 `auto` decodes {auto[greedy]} times as fast
    greedily and {auto[sampled]} times at temperature 1; in a queue {queues[greedy]} and
    {queues[sampled]} times. On two CPU cores in fp32: {cpu[greedy]} greedily, {cpu[sampled]} at
    temperature 1.""",
    """**Other engines** on two CPU cores: {engines[vllm]} times vLLM,
    {engines[vllm-ngram]} its n-grams, {engines[transformers]} transformers,
    {engines[llama.cpp]} llama.cpp.""",
    """**Same text.** Every preset generates plain decoding's tokens, in bf16 on a GPU too
    ({exact[differ]} of {exact[answers]} answers differ).""",
    """**Long context** at an 8B model's price and 124K: RAPID drafted by the 0.5B
    {long[small_rapid]} of plain's speed, the 0.5B over the whole prompt {long[small_sd]}, RAPID
    drafted by the target itself {long[rapid_4]}. MagicDec gains in batches.""",
    """**Heads.** EAGLE-3 at an 8B model's price reaches {large[steps]} tokens per step and
    {large[eagle3]} of plain's speed.""",
    """**Adaptive RAG.** Exact reuse with `auto` is {policies[exact_auto]} times as fast end to end
    on a CPU, {policies[exact_auto_gpu]} on an H200; over cached demonstrations
    {policies[exact_auto_over]}, {policies[exact_auto_over_gpu]}.""",
    """**Against vLLM 0.24 on an H200**, 8B shape: plain decoding {steps[one]} of its speed for one
    sequence of 2K, {steps[others]} elsewhere, {steps[prefill]} in prefill. On a real text at that
    price, `plain` / `auto` {grown[all]} of its better way, {grown[queue]} in a queue.""",
    """**A second question** about a document has its first token in {serving[memory_share]} of the
    time, in a new process in {serving[disk_share]}.""",
)
SHORT = (
    """`auto` at temperature 1 is below plain on text that repeats nothing and in batches of equal
    lengths. On a GPU prefill trails vLLM from 8K on.""",
    """Speed-ups of self-speculation by RAPID, of TriForce and of IDR2's prefill do not appear on a
    GPU, nor gains in quality. The 1.5B's LongSpec stays below 2.6 tokens per step. Queues of 16
    and 64 lose with `auto` on smollm2, with drafts inside vLLM where little is copied.""",
)


def page() -> str:
    """docs/results.md."""
    parts, figures = [], {}
    for section in SECTIONS:
        parts.append(_section(section, figures))
    blocks = [
        "# Results",
        paragraph(INTRODUCTION),
        f"## What was found\n\n{_list(FOUND, figures)}",
        *parts,
        f"## What falls short\n\n{_list(SHORT, figures)}",
    ]
    return "\n\n".join(blocks) + "\n"


def _section(section: Section, figures: dict[str, Mapping[str, str]]) -> str:
    """Its markdown; adds the figures of its tables by their names."""
    blocks = [f"## {section.title}"]
    for table in section.tables:
        results = table.read()
        grid = table.build(*results)
        figures[table.name] = grid.figures
        blocks.append(table_markdown(table, results, grid))
    return "\n\n".join(blocks).replace("\n\n- ", "\n- ").replace("|\n- ", "|\n\n- ")


def _list(lines: tuple[str, ...], figures: Mapping[str, Mapping[str, str]]) -> str:
    return bullets([line.format(**figures) for line in lines])
