"""`graft ask`: a question answered over a corpus, looking things up while it is answered."""

import json as json_module
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli.options import SamplingOptions, takes_options
from graft.cli.run import read_question
from graft.cli.show import Waiting, end_line
from graft.errors import InputError

if TYPE_CHECKING:
    from graft import SamplingParams
    from graft.rag.answer import Answer, Round
    from graft.rag.answering import AnswerStream
    from graft.rag.corpus import Corpus
    from graft.rag.reuse import Reuse
    from graft.rag.session import Session

MOST_SHOWN = 300  # characters of a text in the list of rounds; --json and --html have all


@dataclass(frozen=True, kw_only=True)
class AskOptions(SamplingOptions):
    """What to look up where, and when."""

    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="What to look things up in: a corpus of `graft index passages` (its folder, or "
            "milvus:FILE.db#NAME, milvus:URI#NAME); or documents, JSON lines, a JSON array, TSV or "
            "parquet of passages (text, title, id): a file, a folder or a quoted pattern; "
            "repeatable.",
        ),
    ] = None
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="When to look up: fl (every so many tokens), fs (every sentence), flare (unlikely "
            "sentences), dragin (uncertain words that matter).",
        ),
    ] = "dragin"
    threshold: Annotated[
        float | None,
        typer.Option(help="Of the policy: tokens for fl, 1 - p for flare, RIND for dragin."),
    ] = None
    reuse: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="What rounds take over from earlier ones: off, demos (the demonstrations), exact "
            "(any true prefix); approximate, passages at other places: cics (keys turned to them), "
            "keep (keys as they were), blend (cics, a share computed anew).",
        ),
    ] = "exact"
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Whose passages cics, keep and blend take: question (this one's, as they were "
            "read; the default) or all (each read after the demonstrations alone).",
        ),
    ] = None
    share: Annotated[
        float | None,
        typer.Option(help="Of the reused tokens that blend computes anew; 0.15 if not given."),
    ] = None
    reorder: Annotated[
        bool,
        typer.Option("--reorder", help="Put known passages first; it changes the prompt."),
    ] = False
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep what was read of demonstrations and passages there, for later questions to "
            "the same model; with any --reuse but off.",
        ),
    ] = None
    cache_size: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES", help="Most in --cache-dir, such as 2g; the longest unused goes; 4g."
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
    passages: Annotated[int, typer.Option(min=1, help="Of a round.")] = 3
    rounds: Annotated[int, typer.Option(min=0, help="Most searches.")] = 16
    guide: Annotated[
        bool | None,
        typer.Option(
            help="Tell the model which passages matter; by default if reuse is approximate."
        ),
    ] = None
    draft: Annotated[
        str, typer.Option(metavar="NAME", help="Who guesses ahead; as for `graft run`.")
    ] = "igpg"

    def read_corpus(self) -> "Corpus":
        """What --corpus names."""
        if not self.corpus:
            raise InputError("nothing to look things up in; name files with --corpus")
        from graft.rag import open_corpus

        with Waiting("reading the corpus"):
            return open_corpus(self.corpus)

    def check(self) -> None:
        """Refuse what can be refused before anything is read."""
        from graft.rag.families import find_family
        from graft.rag.policies import check_policy

        check_policy(self.policy)
        if self.chosen_reuse().name == "off" and self.cache_dir is not None:
            raise InputError(
                "--reuse off keeps nothing in --cache-dir; choose demos, exact or cics"
            )
        if self.cache_size is not None and self.cache_dir is None:
            raise InputError("--cache-size is that of --cache-dir; name a folder")
        self.cache_bytes()
        find_family(self.family)

    def chosen_reuse(self) -> "Reuse":
        """What --reuse and its companions say."""
        from graft.rag.reuse import as_reuse

        return as_reuse(self.reuse, scope=self.scope, share=self.share, reorder=self.reorder)

    def cache_bytes(self) -> int:
        """What --cache-size means."""
        from graft.rag.document_cache import DISK_BYTES

        if self.cache_size is None:
            return DISK_BYTES
        number = self.cache_size.strip().lower().removesuffix("b")
        power = "kmgt".find(number[-1:]) + 1 if number[-1:].isalpha() else 0
        try:
            size = int(float(number.rstrip("kmgt")) * 1024**power)
        except (ValueError, OverflowError):
            size = 0
        if size < 1:
            raise InputError(f"--cache-size is a size such as 500m or 2g, not {self.cache_size!r}")
        return size

    def session(self, corpus: "Corpus") -> "Session":
        """With the model asked for."""
        from graft.rag import Session

        return Session(
            self.load(),
            corpus,
            policy=self.policy,
            reuse=self.chosen_reuse(),
            draft=self.draft,
            family=self.family,
            threshold=self.threshold,
            passages=self.passages,
            most_rounds=self.rounds,
            guided=self.guide,
            cache_dir=self.cache_dir,
            cache_size=self.cache_bytes(),
        )


@takes_options
def ask(
    question: Annotated[
        str | None, typer.Argument(help="The question; - or nothing reads it from a pipe.")
    ] = None,
    *,
    options: AskOptions,
    show_rounds: Annotated[
        bool, typer.Option("--show-rounds", help="List what each round looked up and wrote.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the rounds as a page to read.")
    ] = None,
) -> None:
    """Answer a question over a corpus, looking things up while answering.

    Example: graft ask "Which of the two lifts is older?" --corpus docs/ --show-rounds
    """
    options.check()
    question, params = read_question(question), options.sampling()
    session = options.session(options.read_corpus())
    if options.max_tokens is None:
        params = options.sampling(max_tokens=session.family.max_tokens)
    answer = _answer(session, question, params, quiet=json)
    if html is not None:
        _write_page(answer, session.engine.model_name, html)
    if json:
        told = {**answer.as_dict(), "model": session.engine.model_name}
        print(json_module.dumps(told))
        return
    if show_rounds:
        _show_rounds(answer)
    _footer(answer)


def _answer(
    session: "Session", question: str, params: "SamplingParams", *, quiet: bool
) -> "Answer":
    """Let the session answer, writing the text as it comes unless `quiet`."""
    stream = session.stream(question, params)
    waiting = Waiting("thinking")
    try:
        _follow(stream, waiting, quiet=quiet)
    finally:
        waiting.stop()
        stream.close()
    if not quiet:
        end_line(stream.answer.text)
    return stream.answer


def _follow(stream: "AnswerStream", waiting: Waiting, *, quiet: bool) -> None:
    from graft.rag.answering import Searched, Wrote

    begun = False
    for event in stream:
        if isinstance(event, Searched):
            waiting.say(f"searched: {event.query}")
        elif isinstance(event, Wrote) and not quiet:
            waiting.stop()
            sys.stdout.write(event.text if begun else event.text.lstrip())
            sys.stdout.flush()
            begun = True


def _write_page(answer: "Answer", model: str, path: Path) -> None:
    from graft.home import atomic_file
    from graft.rag.trace import trace_html

    with atomic_file(path.absolute()) as temporary:
        temporary.write_text(trace_html(answer, model=model), encoding="utf-8")


def _show_rounds(answer: "Answer") -> None:
    """A paragraph for each round, on stderr."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    for each in answer.rounds:
        what = "without a search" if each.query is None else f"searched: {each.query}"
        console.rule(f"round {each.number}", align="left", style="dim")
        console.print(_short(what), style="bold" if each.query else "dim", markup=False)
        if each.reason:
            console.print(f"because: {_short(each.reason)}", style="dim", markup=False)
        for hit in each.hits:
            line = f"  [{hit.passage.id}] {hit.passage.title or hit.passage.text}"
            console.print(f"{line[:80]}  {hit.score:.2f}", markup=False, style="cyan")
        if each.text.strip():
            console.print(f"kept: {_short(each.text)}", markup=False)
        if each.dropped.strip():
            console.print(f"dropped: {_short(each.dropped)}", style="red", markup=False)
        console.print(_costs(each), style="dim", markup=False)
    console.rule(style="dim")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ..."


def _costs(each: "Round") -> str:
    kept = ", ".join(f"{kind} {count}" for kind, count in each.reused.items())
    near = each.stats.approximate_tokens
    kept = ", ".join(filter(None, (kept, f"passage {near} approximately" if near else "")))
    reused = f" (not read again: {kept})" if kept else ""
    if each.reordered:
        reused += " (passages reordered)"
    return (
        f"{each.stats.prompt_tokens:,} prompt tokens{reused} · {each.stats.tokens} tokens in "
        f"{each.stats.steps} steps · search {each.retrieval_seconds:.3f} s, prefill "
        f"{each.stats.prefill_seconds:.2f} s, decode {each.stats.decode_seconds:.2f} s, "
        f"judging {each.judging_seconds:.2f} s"
    )


def _footer(answer: "Answer") -> None:
    """One dim line on stderr."""
    from rich.console import Console

    totals = answer.totals
    once, near = totals.demonstration_seconds, totals.approximate_tokens
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(
        f"{totals.calls} rounds, {totals.retrievals} searches · {totals.tokens} tokens, "
        f"{totals.tokens_per_step:.2f} per step · {totals.reused_tokens:,} of "
        f"{totals.prompt_tokens:,} prompt tokens not read again"
        f"{f', {near:,} more approximately' if near else ''} · search "
        f"{totals.retrieval_seconds:.2f} s, prefill {totals.prefill_seconds:.2f} s, decode "
        f"{totals.decode_seconds:.2f} s, judging {totals.judging_seconds:.2f} s, in all "
        f"{totals.total_seconds:.2f} s"
        f"{f' (demonstrations, once: {once:.2f} s)' if once else ''}"
        f"{' · approximate' if answer.made.approximate else ''}"
        f"{'' if answer.made.lossless else ' · not lossless'}",
        style="dim",
        markup=False,
    )
