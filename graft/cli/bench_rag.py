"""`graft bench --suite rag`: questions over a corpus, every policy and way by turns."""

from pathlib import Path
from typing import TYPE_CHECKING

from graft.errors import InputError

if TYPE_CHECKING:
    from graft.bench.rag.report import RagReport
    from graft.bench.rag.settings import RagSettings
    from graft.cli.bench import BenchOptions

NOT_HERE = (
    "draft", "peers", "temperature", "batch", "context", "groups", "quality", "load_options",
    "gguf", "peer_options",
)  # fmt: skip


def rag_settings(options: "BenchOptions", policy: str | None, ways: str | None) -> "RagSettings":
    """What the options of `graft bench` mean here; InputError for those that mean nothing."""
    from graft.bench.asked import context_tokens
    from graft.bench.rag.settings import RagSettings, as_way

    for name in NOT_HERE:
        if getattr(options, name) is not None:
            other = "--way REUSE:DRAFT" if name == "draft" else "nothing in its place"
            raise InputError(f"the suite rag has no --{name.replace('_', '-')}; use {other}")
    given = {
        "sets": _listed(options.category),
        "policies": _listed(policy),
        "ways": tuple(map(as_way, _listed(ways) or ())) or None,
        "model": options.model,
        "draft_model": options.draft_model,
        "head": options.head,
        "dtype": options.dtype,
        "device": options.device,
        "context_length": context_tokens(options.context_length),
        "threads": options.threads,
        "limit": options.limit,
        "split": options.split,
        "repeats": options.repeats,
        "max_tokens": options.max_tokens,
    }
    known = {name: value for name, value in given.items() if value is not None}
    return RagSettings(data=options.data, **known)


def rag_file(settings: "RagSettings") -> Path:
    """Named after what may not change within a file."""
    return Path("results") / f"rag-{Path(settings.model).name}-{settings.dtype}.jsonl"


def rag_report(file: Path, baseline: str | None) -> "RagReport":
    """The figures of a result file."""
    from graft.bench.rag.records import read_rag_results
    from graft.bench.rag.report import report

    return report(read_rag_results(file), baseline)


def _listed(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(p.strip() for p in text.split(",") if p.strip())
