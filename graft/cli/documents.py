"""Documents in a prompt, and which of their passages the user is told were taken."""

import sys
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from graft.cli.show import Waiting

if TYPE_CHECKING:
    from graft import DocumentPrompt, Engine
    from graft.documents import Document

MOST_DOCUMENTS, MOST_PLACES = 4, 12  # named in the line; --json has them all


def fitted(*args: Any, **options: Any) -> "DocumentPrompt":  # noqa: ANN401 (of document_prompt)
    """`graft.document_prompt`, with a line to look at while a long document is searched."""
    import graft

    with Waiting("choosing passages"):
        return graft.document_prompt(*args, **options)


def say_selection(prompt: "DocumentPrompt", engine: "Engine", documents: "list[Document]") -> None:
    """One line on stderr if the documents were too long; nothing if they are whole."""
    if prompt.whole:
        return
    from graft.decode.document_prompt import rounded

    several = len(documents) > 1
    subject = f"{len(documents):,} documents have" if several else f"{documents[0].name} has"
    found = "" if prompt.matched else " (the first ones: none has a word of the question)"
    where = "; ".join(_places(prompt, named=several))
    print(
        f"{subject} about {rounded(prompt.tokens):,} tokens, {engine.model_name} reads "
        f"{engine.context_length:,} with the answer: answering from {len(prompt.passages)} of "
        f"{prompt.total_passages:,} passages{found}: {where}; --full insists on all of it",
        file=sys.stderr,
    )


def keep_documents(engine: "Engine", prompt: "DocumentPrompt") -> None:
    """Keep what was read of whole documents; passages are selected anew for every question."""
    if prompt.passages and prompt.whole:
        with Waiting("keeping the documents for the next question"):
            engine.remember(prompt.messages)


def selection_as_dict(prompt: "DocumentPrompt") -> dict[str, Any]:
    """For --json."""
    return {
        "whole": prompt.whole,
        "matched": prompt.matched,
        "tokens": prompt.tokens,
        "total_passages": prompt.total_passages,
        "passages": [
            {
                "document": each.document,
                "start": each.start,
                "end": each.end,
                "pages": each.pages,
            }
            for each in prompt.passages
        ],
    }


def _places(prompt: "DocumentPrompt", *, named: bool) -> Iterator[str]:
    """For each document its pages, or characters where it has none."""
    by_document = [
        (name, list(some)) for name, some in groupby(prompt.passages, lambda each: each.document)
    ]
    for name, some in by_document[:MOST_DOCUMENTS]:
        paged = some[0].pages is not None
        spans = joined([each.pages or (each.start, each.end) for each in some], gap=int(paged))
        shown = [f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in spans[:MOST_PLACES]]
        more = ["..."] if len(spans) > MOST_PLACES else []
        of_document = f"{name} " if named else ""
        yield f"{of_document}{'pages' if paged else 'characters'} {', '.join([*shown, *more])}"
    if len(by_document) > MOST_DOCUMENTS:
        yield f"{len(by_document) - MOST_DOCUMENTS} more documents"


def joined(spans: list[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Ordered spans, those at most `gap` apart made one."""
    result = spans[:1]
    for first, last in spans[1:]:
        if first <= result[-1][1] + gap:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result
