"""Tables of kernels, step times, serving, indexes and datastores."""

from benchmarks.published.engines import vllm_proposer
from benchmarks.published.figures import interval, number, percent, select
from benchmarks.published.page import Grid, Section, Table
from graft.bench.result_file import Results
from graft.bench.statistics import mean, ratio

INDEXES = {
    "automaton": "suffix automaton (`auto`)",
    "ngram": "n-gram positions (`pld`)",
    "copy": "copier (`copy`)",
    "counts": "n-gram counts (`igpg`)",
    "store": "datastore (`store:`)",
}


def serving(load: Results, prefix: Results) -> Grid:
    """Figures of the text."""
    long, short = select(load.rows, part="summary")
    figures = {
        "completed": f"{long['completed']} and {short['completed']}",
        "different": str(long["different"] + short["different"]),
        "failed": str(sum(row[name] for row in (long, short) for name in ("stuck", "failed"))),
        "between": f"{short['between_tokens_p50_ms']:.0f} / {short['between_tokens_p99_ms']:.0f}",
        "alone": f"{short['alone_between_tokens_p50_ms']:.0f} / "
        f"{short['alone_between_tokens_p99_ms']:.0f}",
    }
    for kind in ("disk", "memory"):
        first, *later = (row["first_token_seconds"] for row in select(prefix.rows, variant=kind))
        figures[f"{kind}_first"] = number(first, 1)
        figures[f"{kind}_later"] = number(sum(later) / len(later), 1)
        figures[f"{kind}_share"] = percent(sum(later) / len(later) / first)
    return Grid(figures=figures)


def documents(cited: Results, load: Results, shortened: Results) -> Grid:
    """Figures of the text."""
    full, auto = (select(shortened.rows, context=each) for each in ("full", "auto"))
    both = list(zip(full, auto, strict=True))
    first = [(one["seconds"], two["seconds"]) for one, two in both if one["first"]]
    rows, counts = cited.rows, load.rows[0]["counts"]
    figures = {
        "files": str(len({row["document"] for row in rows})),
        "formats": str(len({row["format"] for row in rows})),
        "converted": str(len({row["document"] for row in rows if row["converted"]})),
        "questions": str(len(rows)),
        **{kind: str(sum(row[kind] for row in rows)) for kind in ("retrieved", "quoted", "cited")},
        "responses": f"{sum(counts[each] for each in counts if 'status' in each):,}",
        **{kind: f"{counts[kind]:,}" for kind in ("uploads", "deletions")},
        "wrong": str(load.rows[0]["wrong"]),
        "short_questions": str(len(both)),
        "full_f1": number(mean([row["score"] for row in full]).mean),
        "f1_change": interval(mean([two["score"] - one["score"] for one, two in both]), sign="+"),
        "faster": number(ratio(*zip(*first, strict=True)).mean, 1),
    }
    return Grid(figures=figures)


def indexes(results: Results) -> Grid:
    """Figures of the text, of every index."""
    found = []
    for index, name in INDEXES.items():
        rows = {row["tokens"]: row for row in select(results.rows, index=index)}
        small, large = rows[128 * 1024], rows[512 * 1024]
        built = f"{number(small['build_ms'], 1)} / {number(large['build_ms'], 0)}"
        times = (number(small[each], 1) for each in ("extend_us", "lookup_us", "lookup_p99_us"))
        found.append(f"{name} {built}, {', '.join(times)}")
    return Grid(figures={"all": "; ".join(found)})


def datastores(results: Results, passages: Results) -> Grid:
    """Figures of the text."""
    (one, *_) = select(results.rows, tokens=50_000_000, merged=True)
    found = passages.rows[0]
    figures = {
        "store_build": number(one["build_seconds"], 0),
        "store_memory": number(one["peak_bytes"] / 1e9, 1),
        "store_disk": number(one["disk_bytes"] / 1e6, 0),
        "open": number(one["open_ms"], 1),
        "query": f"{one['query_us_p50']:.0f} µs (p99 {one['query_us_p99']:.0f})",
        "rest": f"{one['rest_us_p50']:.0f} ({one['rest_us_p99']:,.0f})",
        "passages": f"{found['passages']:,}",
        "build": number(found["build_seconds"], 0),
        "memory": number(found["build_peak_megabytes"] / 1e3, 1),
        "disk": number(found["megabytes"] / 1e3, 1),
        "search": f"{found['p50_ms']:.1f} ms (p99 {found['p99_ms']:.0f})",
    }
    return Grid(figures=figures)


def pool(under_load: Results, calls: Results, warm: Results) -> Grid:
    """Figures of the text."""
    [full] = select(under_load.rows, part="load")
    kills = select(under_load.rows, part="kill")
    gains = [
        f"{row['suite']} {row['auto_seconds'] / row['pool_seconds']:.2f} "
        f"({row['auto_tokens_per_step']:.1f} to {row['pool_tokens_per_step']:.1f})"
        for row in select(warm.rows, part="all")
    ]
    figures = {
        "tokens": f"{full['tokens'] / 1e6:.0f}M",
        "lookup": f"{full['lookup_us']:.0f} µs (p99 {full['lookup_p99_us']:.0f})",
        "add": f"{full['add_us']:.0f} µs (p99 {full['add_p99_us']:,.0f})",
        "megabytes": number(full["megabytes"], 0),
        "kills": str(len(kills)),
        "lost": str(kills[-1]["first"] + sum(row["lost"] for row in kills)),
        "reported": f"{kills[-1]['reported']:,}",
        "answers": f"{len(calls.rows):,}",
        "differ": str(sum(row["differs"] for row in calls.rows)),
        "gains": ", ".join(gains),
    }
    return Grid(figures=figures)


SECTION = Section(
    "Serving, indexes",
    [
        Table(
            "proposer",
            "Inside vLLM, and graft serve",
            ["serve_n1_fp32_vllm_proposer", "serve_n1_fp32_vllm_load", "serve_n1_fp32_throughput"],
            "python -m benchmarks decode --suite squad --engines vllm-graft",
            """Graft's proposer in vLLM 0.32, 16 SQuAD questions, fp32, decoding with 1;
            4; 8 requests against vLLM: {plain}, against its n-gram drafts of 16:
            {ngram}. 64 clients, {disconnected} left, {preemptions} preemptions: {different} of
            {completed} answers differ from plain vLLM's. `graft serve`, RAG, `auto` against
            `plain`: {served}.""",
            vllm_proposer,
        ),
        Table(
            "indexes",
            "Lookup indexes",
            ["index_n1_synthetic"],
            "python -m benchmarks index",
            """Milliseconds to build 128K / 512K tokens, then microseconds to append 4 tokens, of a
            lookup at 128K and its p99; planted copies: {all}.""",
            indexes,
        ),
        Table(
            "serving",
            "Load and prefix cache",
            ["serve_n1_fp32_load", "serve_n1_any_prefix_cache"],
            "python -m benchmarks.serve.load",
            """64 streaming clients for 10 and 1.5 minutes, some leave early or are invalid:
            {completed} answers, {different} differ from the same request alone, {failed} failed;
            {between} ms between tokens (p50 / p99), {alone} for one client. First token of a second
            question about 6,000 tokens: {memory_later} s instead of {memory_first}
            ({memory_share}), from disk {disk_later} ({disk_share}).""",
            serving,
        ),
        Table(
            "documents",
            "Documents and corpora",
            ["documents_xeon_any_formats", "serve_xeon_any_corpora", "context_n1_gguf_squad"],
            "benchmarks.documents.cite",
            """{files} files of {formats} formats in one corpus: {retrieved} of {questions}
            questions have their sentence in the prompt; an answer with it cites the right file and
            page in {quoted}, smollm2's own in {cited}. 64 clients of 4 keys, 10 minutes, kill -9:
            {responses} responses, {uploads} uploads, {deletions} deletions, {wrong} lost or failed.
            `--context auto` instead of `full`, Qwen2.5-Coder-1.5B, {short_questions} questions
            about 4,000 tokens: F1 {f1_change} ({full_f1} with `full`), {faster} times as fast.""",
            documents,
        ),
        Table(
            "datastores",
            "Datastores",
            ["datastore_n1_corpora", "datastore_n1_passages"],
            "python -m benchmarks.datastore.build corpora.jsonl.gz",
            """50M tokens of Wikipedia, ShareGPT and Python build in {store_build} s
            with {store_memory} GB, take {store_disk} MB on disk, open in {open} ms and answer a
            query in {query}, REST's {rest}. A BM25 index of {passages} passages builds in {build} s
            with {memory} GB, takes {disk} GB and answers in {search}.""",
            datastores,
        ),
        Table(
            "pool",
            "Pool",
            ["pool_xeon_10m", "calls_xeon_fp32", "warm_xeon_8b"],
            "python -m benchmarks.index.pool",
            """Full with {tokens} tokens, evicting: lookup {lookup}, adding 500 tokens {add},
            {megabytes} MB. {kills} kill -9 lose {lost} of {reported} answers; {differ} of {answers}
            tool calls differ from plain. Gold answers at 8B costs on an H200, against no pool
            (tokens per step): {gains}.""",
            pool,
        ),
    ],
)
