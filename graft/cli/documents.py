"""Documents in a prompt, and the passages that were selected from long ones."""

import sys
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from graft.cli.show import Spinner

if TYPE_CHECKING:
    from graft import DocumentPrompt, Engine
    from graft.documents import Document

MAX_DOCUMENTS, MAX_SPANS = 4, 12  # named in the line; --json has them all


def fit_documents(*args: Any, **options: Any) -> "DocumentPrompt":  # noqa: ANN401 (of document_prompt)
    """`graft.document_prompt` with a spinner: searching a long document takes a while."""
    import graft

    with Spinner("selecting passages"):
        return graft.document_prompt(*args, **options)


def report_selection(
    prompt: "DocumentPrompt", engine: "Engine", documents: "list[Document]", *, auto: bool = False
) -> None:
    """Print one line on stderr if only passages of the documents are used; `auto`: by choice."""
    if prompt.whole:
        return
    from graft.documents.prompt import rounded

    several = len(documents) > 1
    subject = f"{len(documents):,} documents have" if several else f"{documents[0].name} has"
    matched = "" if prompt.matched else " (the first ones: none matches a word of the question)"
    where = "; ".join(_spans(prompt, named=several))
    why = f", the context of {engine.model_name} is {engine.context_length:,} with the answer"
    other = "--full refuses instead"
    if auto:
        why, other = "", "--context full uses all that fits"
    print(
        f"{subject} about {rounded(prompt.tokens):,} tokens{why}: using {len(prompt.passages)} of "
        f"{prompt.total_passages:,} passages{matched}: {where} ({other})",
        file=sys.stderr,
    )


def keep_documents(engine: "Engine", prompt: "DocumentPrompt") -> None:
    """Keep the KV cache of whole documents on disk; selected passages differ by question."""
    if prompt.passages and prompt.whole:
        with Spinner("writing the documents' KV cache to disk"):
            engine.remember(prompt.messages)


def _spans(prompt: "DocumentPrompt", *, named: bool) -> Iterator[str]:
    """The selected pages of each document, or characters where it has no pages."""
    by_document = [
        (name, list(group)) for name, group in groupby(prompt.passages, lambda each: each.document)
    ]
    for name, passages in by_document[:MAX_DOCUMENTS]:
        paged = passages[0].pages is not None
        spans = merge_spans(
            [each.pages or (each.start, each.end) for each in passages], gap=int(paged)
        )
        shown = [f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in spans[:MAX_SPANS]]
        more = ["..."] if len(spans) > MAX_SPANS else []
        of_document = f"{name} " if named else ""
        yield f"{of_document}{'pages' if paged else 'characters'} {', '.join([*shown, *more])}"
    if len(by_document) > MAX_DOCUMENTS:
        yield f"{len(by_document) - MAX_DOCUMENTS} more documents"


def merge_spans(spans: list[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Merge ordered spans that are at most `gap` apart."""
    result = spans[:1]
    for first, last in spans[1:]:
        if first <= result[-1][1] + gap:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result
