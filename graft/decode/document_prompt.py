"""The prompt of a question about documents of any length.

Documents that fit the model's context are used whole. From longer ones BM25 selects the passages
that match the question best, as many as fit beside question and answer, in document order; a line
"[...]" marks each gap.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count
from typing import TYPE_CHECKING

from graft.documents.prompt import document_messages
from graft.documents.read import Document
from graft.errors import ContextLengthError
from graft.retrieval.bm25 import scores
from graft.retrieval.passage import MAX_CHARACTERS, Passage, split
from graft.retrieval.select import fill, ranking
from graft.sampling import SamplingParams

if TYPE_CHECKING:
    from graft.decode.engine import Engine

Selected = list[tuple[Document, list[Passage]]]
GAP = "[...]"
GAP_TOKENS = 6  # of one gap, estimated
PASSAGE_TOKENS, MIN_CHARACTERS = 300, 80
FLOOR_CHARACTERS = 20  # if not even one passage of MIN_CHARACTERS fits
SAMPLES, SAMPLE_CHARACTERS = 8, 4096  # from which the tokens of a long text are estimated


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Characters `start` to `end` (exclusive) of a document, and its first and last page if any."""

    document: str
    start: int
    end: int
    pages: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class DocumentPrompt:
    """`messages` to answer, and the `passages` of the documents in them.

    If `whole`, the prompt has all documents, each as one passage. `tokens` is the estimated size of
    all documents. `matched` is False if no passage has a word of the question; then the first
    passages were selected.
    """

    messages: list[dict[str, str]]
    passages: tuple[Excerpt, ...]
    total_passages: int
    tokens: int
    whole: bool = True
    matched: bool = True


def document_prompt(
    engine: "Engine",
    question: str,
    documents: Sequence[Document],
    params: SamplingParams | None = None,
    *,
    full: bool = False,
    keep_free: int = 0,
) -> DocumentPrompt:
    """The prompt of a question about documents: all of them if they fit, else the best passages.

        documents = graft.read_documents(["contract.pdf"])
        prompt = graft.document_prompt(engine, "When can it be ended?", documents)
        print(engine.generate(prompt.messages).text)

    `keep_free` tokens, on top of `params.max_tokens`, stay free for later turns of a chat. Raises
    ContextLengthError if `full` is set and the documents do not fit, or if no passage fits.
    """
    context = engine.context_length
    limit = context - min((params or SamplingParams()).max_tokens, context // 2)
    tokens = _about_tokens(engine, documents)
    if tokens < 2 * context:  # far longer documents are never tokenized to the end
        messages = document_messages(question, documents)
        tokens = _count(engine, messages) if documents else 0
        if tokens <= (context - 1 if full else limit):
            taken = tuple(_excerpt(document, 0, len(document.text)) for document in documents)
            return DocumentPrompt(messages, taken, len(taken), tokens)
    if full:
        raise ContextLengthError(
            f"the documents have about {rounded(tokens):,} tokens but {engine.model_name} takes "
            f"{context:,} with question and answer; leave out full (--full) to answer from the "
            "passages that fit, or use a model with a longer context"
        )
    alone = _count(engine, document_messages(question, []))
    left = limit - alone
    left = max(left - keep_free, left // 2)
    return _select(engine, question, documents, tokens, limit=alone + left, max_passage_tokens=left)


def rounded(number: int) -> int:
    """To two significant digits, for estimates."""
    return int(float(f"{number:.2g}"))


def _select(
    engine: "Engine",
    question: str,
    documents: Sequence[Document],
    tokens: int,
    *,
    limit: int,
    max_passage_tokens: int,
) -> DocumentPrompt:
    """A prompt of the best passages: `max_passage_tokens` for them, `limit` for the whole prompt.

    Passages are split shorter if not even one fits.
    """
    characters = 0
    if max_passage_tokens > 0:
        characters = _passage_characters(documents, tokens, max_passage_tokens)
    while characters >= FLOOR_CHARACTERS:
        parts = [split(document.name, document.text, characters) for document in documents]
        passages = list(chain.from_iterable(parts))
        values = scores(question, [passage.text for passage in passages])
        taken = fill(ranking(passages, values), _sizes(engine, passages), max_passage_tokens)
        for kept in range(len(taken), 0, -1):  # headings and gaps may take more than estimated
            chosen = _by_document(documents, parts, set(taken[:kept]))
            messages = document_messages(question, [_shortened(*each) for each in chosen])
            if _count(engine, messages) > limit:
                continue
            excerpts = [
                _excerpt(document, p.start, p.end) for document, some in chosen for p in some
            ]
            matched = bool(values.any())
            return DocumentPrompt(
                messages, tuple(excerpts), len(passages), tokens, whole=False, matched=matched
            )
        characters //= 2
    raise ContextLengthError(
        f"the question leaves no room for passages of the documents: {engine.model_name} takes "
        f"{engine.context_length:,} tokens with the answer; ask shorter, lower max_tokens or use "
        "a model with a longer context"
    )


def _sizes(engine: "Engine", passages: Sequence[Passage]) -> Callable[[int], int]:
    """The tokens of a passage by its number; only passages that are considered are tokenized."""
    return lambda number: len(engine.encoder.text(passages[number].text)) + GAP_TOKENS


def _passage_characters(documents: Sequence[Document], tokens: int, max_tokens: int) -> int:
    """The maximum passage length: about 300 tokens, fewer if not even four of these fit."""
    characters = sum(len(document.text) for document in documents)
    fair = min(max_tokens // 4, PASSAGE_TOKENS) * characters // tokens
    return min(max(fair, MIN_CHARACTERS), MAX_CHARACTERS)


def _by_document(
    documents: Sequence[Document], parts: Sequence[list[Passage]], taken: set[int]
) -> Selected:
    """The selected passages in order, and only documents that have some."""
    number = count()
    chosen = [[passage for passage in part if next(number) in taken] for part in parts]
    return [(document, some) for document, some in zip(documents, chosen, strict=True) if some]


def _shortened(document: Document, passages: list[Passage]) -> Document:
    """The document with gaps between these passages."""
    text, place = "", 0
    for passage in passages:
        if passage.start > place:
            text = f"{text.rstrip()}\n\n{GAP}\n\n" + passage.text.lstrip("\n")
        else:
            text += passage.text
        place = passage.end
    if place < len(document.text):
        text = f"{text.rstrip()}\n\n{GAP}"
    return Document(document.name, text)


def _excerpt(document: Document, start: int, end: int) -> Excerpt:
    return Excerpt(document.name, start, end, document.pages_of(start, end))


def _count(engine: "Engine", messages: list[dict[str, str]]) -> int:
    """The number of tokens of a prompt."""
    return len(engine.encoder.prompt(messages).tokens)


def _about_tokens(engine: "Engine", documents: Sequence[Document]) -> int:
    """Tokens of all documents, estimated from samples if they are long."""
    starts = [0, *accumulate(len(document.text) for document in documents)]
    total = starts[-1]
    if total <= SAMPLES * SAMPLE_CHARACTERS:
        return sum(len(engine.encoder.text(document.text)) for document in documents)
    characters = tokens = 0
    for place in range(0, total, -(-total // SAMPLES)):
        number = bisect_right(starts, place) - 1
        first = place - starts[number]
        sample = documents[number].text[first : first + SAMPLE_CHARACTERS]
        characters += len(sample)
        tokens += len(engine.encoder.text(sample))
    return round(total * tokens / characters)
