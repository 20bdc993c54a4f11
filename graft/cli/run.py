"""`graft run`: answer one question from documents."""

import json as json_module
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli.answer import Answer, answer
from graft.cli.compare import Comparison, show_comparison
from graft.cli.documents import fit_documents, keep_documents, report_selection
from graft.cli.options import COLOR, JSON, QUESTION, SERVER, AnswerOptions, takes_options
from graft.cli.show import end_line, footer, prefill_tokens_per_second, token_printer
from graft.errors import InputError

if TYPE_CHECKING:
    from graft import DocumentPrompt


@takes_options
def run(
    question: QUESTION = None,
    *,
    options: AnswerOptions,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Also decode without drafting; compare tokens and time."),
    ] = False,
    color: COLOR = False,
    json: JSON = False,
    server: SERVER = True,
) -> None:
    """Answer a question from documents.

    Example: graft run "How fast is support?" --doc examples/service_agreement.md --compare
    """
    # Wrong options are refused before torch is imported and a model is loaded.
    options.check()
    params, question, documents = options.sampling(), read_question(question), options.documents()
    if server and not (compare or json or options.full):
        from graft.cli.resident import run_on_server

        if run_on_server(question, documents, params, options, color=color):
            return
    engine = options.load(prefix_cache=not compare)  # both runs of a comparison prefill the prompt
    limits = {"full": options.full, "document_tokens": options.document_tokens()}
    prompt = fit_documents(engine, question, documents, params, **limits)
    if not json:
        report_selection(prompt, engine, documents, auto=bool(options.document_tokens()))
    show = (lambda event: None) if json else token_printer(color=color)
    drafted = answer(engine, prompt.messages, params, options.draft, show)
    if not json:
        end_line(drafted.result.text)
        footer(drafted, color=color, load_seconds=engine.load_seconds)
    comparison = None
    if compare:
        same_seed = options.sampling(seed=drafted.result.seed)
        comparison = Comparison(drafted, answer(engine, prompt.messages, same_seed, "plain"))
    if json:
        print(json_module.dumps(as_dict(drafted, prompt, engine.load_seconds, comparison)))
    elif comparison:
        show_comparison(comparison, engine.dtype, exact=engine.is_exact)
    if options.cache:
        keep_documents(engine, prompt)


def read_question(question: str | None) -> str:
    """The question, from standard input if it is None or "-"; InputError if it is empty."""
    if question is None and sys.stdin.isatty():
        raise InputError('no question; type one: graft run "question" --doc FILE')
    if question is None or question == "-":
        try:
            question = sys.stdin.read()
        except UnicodeDecodeError:
            raise InputError("the question on standard input is not UTF-8 text") from None
    if not question.strip():
        raise InputError("the question is empty")
    return question.strip()


def as_dict(
    drafted: Answer,
    prompt: "DocumentPrompt",
    load_seconds: float,
    comparison: Comparison | None,
) -> dict[str, object]:
    """The object of --json."""
    result = drafted.result
    speed = prefill_tokens_per_second(result.stats)
    fields = {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "lossless": result.lossless,
        "output": str(result.promise),
        "load_seconds": load_seconds,
        "stats": {**result.stats.as_dict(), "prefill_tokens_per_second": speed},
    }
    if prompt.passages:
        fields["documents"] = prompt.as_dict()
    return fields if comparison is None else {**fields, "compare": comparison.as_dict()}
