"""`graft ask`: answer a question over a corpus with adaptive retrieval."""

import json as json_module
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli.options import JSON, QUESTION, SERVER, SamplingOptions, parse_size, takes_options
from graft.cli.run import read_question
from graft.cli.show import Spinner, end_line, prompt_parts
from graft.errors import InputError

if TYPE_CHECKING:
    from graft import SamplingParams
    from graft.rag.answer import Answer, Round
    from graft.rag.answering import AnswerStream
    from graft.rag.corpus import Corpus
    from graft.rag.reuse import Reuse
    from graft.rag.session import Session

MAX_SHOWN = 300  # characters of a text in the list of rounds; --json and --html have all


@dataclass(frozen=True, kw_only=True)
class AskOptions(SamplingOptions):
    """Corpus, retrieval policy and reuse of the KV cache."""

    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="A corpus of `graft index passages` (its folder, or milvus:FILE.db#NAME, "
            "milvus:URI#NAME); or documents, JSON lines, a JSON array, TSV or parquet of passages "
            "(text, title, id): a file, a folder or a quoted pattern; repeatable.",
        ),
    ] = None
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="When to retrieve: fl (every N tokens), fs (after every sentence), flare (for "
            "sentences of low probability), dragin (for uncertain words with high attention).",
        ),
    ] = "dragin"
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Of the policy: N for fl (32 if not given, 16 with --family 2wiki), mean 1 - p "
            "for flare, RIND for dragin."
        ),
    ] = None
    thresholds: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Published thresholds of flare and dragin: 7b, 13b (LLaMA2) or vicuna-13b.",
        ),
    ] = "7b"
    reuse: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="KV cache that rounds reuse: off, demos (the demonstrations), exact (any common "
            "prefix); approximate, for passages at other positions: cics (keys rotated to the new "
            "position), keep (keys unchanged), blend (cics, a share of the tokens recomputed).",
        ),
    ] = "exact"
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Passages that cics, keep and blend reuse: question (of the same question, the "
            "default) or all (of every question, each prefilled after the demonstrations only).",
        ),
    ] = None
    share: Annotated[
        float | None,
        typer.Option(help="Share of the reused tokens that blend recomputes; 0.15 if not given."),
    ] = None
    reorder: Annotated[
        bool,
        typer.Option("--reorder", help="Put cached passages first; this changes the prompt."),
    ] = False
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep the KV cache of demonstrations and passages there, for later questions to "
            "the same model; needs a --reuse other than off.",
        ),
    ] = None
    cache_size: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Maximum size of --cache-dir, such as 2g; 4g by default. The least recently used "
            "entries are deleted.",
        ),
    ] = None
    family: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Demonstrations and thresholds: general, 2wiki, hotpotqa, musique, strategyqa, or "
            "a .toml file.",
        ),
    ] = "general"
    passages: Annotated[int, typer.Option(min=1, help="Passages per round.")] = 3
    rounds: Annotated[int, typer.Option(min=0, help="Maximum searches.")] = 16
    guide: Annotated[
        bool | None,
        typer.Option(
            help="Mark relevant passages in the prompt; on by default if reuse is approximate."
        ),
    ] = None
    draft: Annotated[str, typer.Option(metavar="NAME", help="Drafter; as for `graft run`.")] = (
        "igpg"
    )

    def read_corpus(self) -> "Corpus":
        """The corpus of --corpus."""
        if not self.corpus:
            raise InputError("no corpus; name files with --corpus")
        from graft.rag import open_corpus

        with Spinner("reading the corpus"):
            return open_corpus(self.corpus)

    def check(self) -> None:
        """Raise InputError for a wrong value; imports neither torch nor numba."""
        from graft.rag.families import find_family
        from graft.rag.policy import check_policy

        super().check()
        check_policy(self.policy, self.thresholds)
        if self.chosen_reuse().name == "off" and self.cache_dir is not None:
            raise InputError(
                "--reuse off keeps nothing in --cache-dir; choose demos, exact or cics"
            )
        if self.cache_size is not None and self.cache_dir is None:
            raise InputError("--cache-size needs --cache-dir; name a folder")
        self.cache_bytes()
        find_family(self.family)

    def chosen_reuse(self) -> "Reuse":
        """The reuse of --reuse, --scope, --share and --reorder."""
        from graft.rag.reuse import as_reuse

        return as_reuse(self.reuse, scope=self.scope, share=self.share, reorder=self.reorder)

    def cache_bytes(self) -> int:
        """--cache-size as a number."""
        from graft.rag.reuse import DISK_BYTES

        if self.cache_size is None:
            return DISK_BYTES
        return parse_size("--cache-size", self.cache_size, "500m or 2g")

    def may_be_served(self) -> bool:
        """Whether a server has these options: exact reuse, nothing on disk."""
        given = self.scope, self.share, self.cache_dir, self.guide
        return self.reuse == "exact" and not self.reorder and given == (None,) * len(given)

    def session(self, corpus: "Corpus") -> "Session":
        """A session with the loaded model."""
        from graft.rag import Session

        return Session(
            self.load_engine(max_batch=1),
            corpus,
            policy=self.policy,
            reuse=self.chosen_reuse(),
            draft=self.draft,
            family=self.family,
            threshold=self.threshold,
            thresholds=self.thresholds,
            passages=self.passages,
            max_rounds=self.rounds,
            guided=self.guide,
            cache_dir=self.cache_dir,
            cache_size=self.cache_bytes(),
        )


@takes_options
def ask(
    question: QUESTION = None,
    *,
    options: AskOptions,
    show_rounds: Annotated[
        bool, typer.Option("--show-rounds", help="List query, passages and text of each round.")
    ] = False,
    json: JSON = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the rounds as an HTML page.")
    ] = None,
    server: SERVER = True,
) -> None:
    """Answer a question over a corpus, retrieving passages while answering.

    Example: graft ask "Which drafter needs a datastore?" --corpus docs --show-rounds
    """
    # Wrong options are refused before torch is imported and a model is loaded.
    options.check()
    params, question = options.sampling(), read_question(question)
    if server and options.corpus and not (json or html or show_rounds) and options.may_be_served():
        from graft.cli.resident import ask_on_server

        if ask_on_server(question, params, options, paths=options.corpus):
            return
    session = options.session(options.read_corpus())
    if options.max_tokens is None:
        params = options.sampling(max_tokens=session.family.max_tokens)
    answer = _answer(session, question, params, quiet=json)
    engine = session.engine
    if html is not None:
        _write_page(answer, engine.model_name, html)
    if json:
        about = {"model": engine.model_name, "load_seconds": engine.load_seconds}
        print(json_module.dumps({**answer.as_dict(), **about}))
        return
    if show_rounds:
        _show_rounds(answer)
    _footer(answer, engine.load_seconds)


def _answer(
    session: "Session", question: str, params: "SamplingParams", *, quiet: bool
) -> "Answer":
    """The session's answer, printed as it is generated unless `quiet`."""
    stream = session.stream(question, params)
    spinner = Spinner("generating")
    try:
        _print_events(stream, spinner, quiet=quiet)
    finally:
        spinner.stop()
        stream.close()
    if not quiet:
        end_line(stream.answer.text)
    return stream.answer


def _print_events(stream: "AnswerStream", spinner: Spinner, *, quiet: bool) -> None:
    from graft.rag.answering import Retrieved, TextAdded

    begun = False
    for event in stream:
        if isinstance(event, Retrieved):
            spinner.update(f"query: {event.query}")
        elif isinstance(event, TextAdded) and not quiet:
            spinner.stop()
            sys.stdout.write(event.text if begun else event.text.lstrip())
            sys.stdout.flush()
            begun = True


def _write_page(answer: "Answer", model: str, path: Path) -> None:
    from graft.home import atomic_file
    from graft.rag.trace import trace_html

    with atomic_file(path.absolute()) as temporary:
        temporary.write_text(trace_html(answer, model=model), encoding="utf-8")


def _show_rounds(answer: "Answer") -> None:
    """Print a paragraph for each round on stderr."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    for each in answer.rounds:
        query = "without retrieval" if each.query is None else f"query: {each.query}"
        console.rule(f"round {each.number}", align="left", style="dim")
        console.print(_short(query), style="bold" if each.query else "dim", markup=False)
        if each.reason:
            console.print(f"reason: {_short(each.reason)}", style="dim", markup=False)
        for hit in each.hits:
            source = hit.passage.source or hit.passage.id
            line = f"  [{source}] {hit.passage.title or hit.passage.text}"
            console.print(f"{line[:80]}  {hit.score:.2f}", markup=False, style="cyan")
        if each.text.strip():
            console.print(f"kept: {_short(each.text)}", markup=False)
        if each.dropped.strip():
            console.print(f"dropped: {_short(each.dropped)}", style="red", markup=False)
        console.print(_costs(each), style="dim", markup=False)
    console.rule(style="dim")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} ..."


def _costs(each: "Round") -> str:
    stats = each.stats
    cached = [f"{part} {count}" for part, count in each.reused.items()]
    if stats.approximate_tokens:
        cached.append(f"passage {stats.approximate_tokens} approximate")
    notes = [f"cached: {', '.join(cached)}"] if cached else []
    notes += ["passages reordered"] if each.reordered else []
    note = f" ({'; '.join(notes)})" if notes else ""
    return (
        f"{stats.prompt_tokens:,} prompt tokens{note} · {stats.tokens} tokens in {stats.steps} "
        f"steps · retrieval {each.retrieval_seconds:.3f} s, prefill {stats.prefill_seconds:.2f} s, "
        f"decode {stats.decode_seconds:.2f} s, policy {each.judging_seconds:.2f} s"
    )


def _footer(answer: "Answer", load_seconds: float) -> None:
    """Print one dim line on stderr."""
    from rich.console import Console

    totals, once = answer.totals, answer.totals.demonstration_seconds
    approximate = totals.approximate_tokens
    parts = [
        f"{totals.calls} rounds, {totals.retrievals} searches",
        f"{totals.tokens} tokens, {totals.tokens_per_step:.2f} per step",
        *prompt_parts(totals),
        f"{approximate:,} cached approximately" if approximate else "",
        f"retrieval {totals.retrieval_seconds:.2f} s, prefill {totals.prefill_seconds:.2f} s, "
        f"decode {totals.decode_seconds:.2f} s, policy {totals.judging_seconds:.2f} s, "
        f"total {totals.total_seconds:.2f} s"
        f"{f' (demonstrations, once: {once:.2f} s)' if once else ''}",
        f"load {load_seconds:.1f} s" if load_seconds else "",
        "approximate" if answer.made.approximate else "",
        "" if answer.made.lossless else "not lossless",
    ]
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(" · ".join(filter(None, parts)), style="dim", markup=False)
