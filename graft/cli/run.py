"""`graft run`: one question, answered from documents."""

import json as json_module
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli.answer import Answer, answer
from graft.cli.compare import Comparison, show_comparison
from graft.cli.documents import fitted, keep_documents, say_selection, selection_as_dict
from graft.cli.options import AnswerOptions, takes_options
from graft.cli.show import end_line, footer, token_printer
from graft.errors import InputError

if TYPE_CHECKING:
    from graft import DocumentPrompt


@takes_options
def run(
    question: Annotated[
        str | None, typer.Argument(help="The question; - or nothing reads it from a pipe.")
    ] = None,
    *,
    options: AnswerOptions,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode plainly too: same tokens? how much slower?")
    ] = False,
    color: Annotated[
        bool, typer.Option("--color", help="Colour tokens by where the guess came from.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Answer a question from documents.

    Example: graft run "When can the contract be ended?" --doc contract.md --compare
    """
    # What can be refused without a model is refused before one is loaded.
    question, documents, params = read_question(question), options.documents(), options.sampling()
    engine = options.load(remembers=not compare)  # both runs of a comparison read the prompt
    prompt = fitted(engine, question, documents, params, full=options.full)
    if not json:
        say_selection(prompt, engine, documents)
    show = (lambda event: None) if json else token_printer(color=color)
    drafted = answer(engine, prompt.messages, params, options.draft, show)
    if not json:
        end_line(drafted.result.text)
        footer(drafted, color=color)
    comparison = None
    if compare:
        same_draws = options.sampling(seed=drafted.result.seed)
        comparison = Comparison(drafted, answer(engine, prompt.messages, same_draws, "plain"))
    if json:
        print(json_module.dumps(as_dict(drafted, prompt, comparison)))
    elif comparison:
        show_comparison(comparison, engine.dtype)
    if options.cache:
        keep_documents(engine, prompt)


def read_question(question: str | None) -> str:
    """The question itself, or what is piped in; InputError if there is none."""
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
    drafted: Answer, prompt: "DocumentPrompt", comparison: Comparison | None
) -> dict[str, object]:
    """What --json prints."""
    result = drafted.result
    fields = {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "lossless": result.lossless,
        "output": str(result.promise),
        "stats": result.stats.as_dict(),
    }
    if prompt.passages:
        fields["documents"] = selection_as_dict(prompt)
    return fields if comparison is None else {**fields, "compare": comparison.as_dict()}
