"""The prompt of a question about documents of any length.

Documents that fit the model's context are taken whole. Of longer ones the passages that BM25 finds
nearest to the question are taken, as many as fit beside the question and the answer, in the order
of the documents; a line "[...]" stands where something is left out.
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

Chosen = list[tuple[Document, list[Passage]]]
GAP = "[...]"
GAP_TOKENS = 6  # about what one costs
PASSAGE_TOKENS, LEAST_CHARACTERS = 300, 80
SHORTEST_CHARACTERS = 20  # where not even one of those finds room
SAMPLES, SAMPLE_CHARACTERS = 8, 4096  # these tell how many tokens a long text has


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Characters of a document from `start` to before `end`; first and last page, if it has any."""

    document: str
    start: int
    end: int
    pages: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class DocumentPrompt:
    """`messages` to answer, and what of the documents is in them.

    Documents that are `whole` are one passage each. `tokens` is about how many the documents have
    in all. `matched` is False where they have no word of the question, so that the first passages
    were taken.
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
    """Documents whole if they fit, else their best passages; `full` refuses to leave any out.

    Passages leave `keep_free` tokens, beside those of the answer, for later turns of a chat.
    """
    context = engine.context_length
    limit = context - min((params or SamplingParams()).max_tokens, context // 2)
    tokens = _about_tokens(engine, documents)
    if tokens < 2 * context:  # what is far too long is not tokenised to its end
        messages = document_messages(question, documents)
        tokens = _count(engine, messages) if documents else 0
        if tokens <= (context - 1 if full else limit):
            taken = tuple(_excerpt(document, 0, len(document.text)) for document in documents)
            return DocumentPrompt(messages, taken, len(taken), tokens)
    if full:
        raise ContextLengthError(
            f"the documents have about {rounded(tokens):,} tokens but {engine.model_name} reads "
            f"{context:,} with question and answer; leave out full (--full) to answer from the "
            "passages that fit, or use a model with a longer context"
        )
    alone = _count(engine, document_messages(question, []))
    room = limit - alone
    room = max(room - keep_free, room // 2)
    return _select(engine, question, documents, tokens, limit=alone + room, room=room)


def rounded(number: int) -> int:
    """Two significant digits: as much as an estimate is worth."""
    return int(float(f"{number:.2g}"))


def _select(
    engine: "Engine",
    question: str,
    documents: Sequence[Document],
    tokens: int,
    *,
    limit: int,
    room: int,
) -> DocumentPrompt:
    """The best passages of documents with so many `tokens` that take `room` tokens at most, and
    with the question `limit`; shorter ones where not even one finds room."""
    most = _passage_characters(documents, tokens, room) if room > 0 else 0
    while most >= SHORTEST_CHARACTERS:
        parts = [split(document.name, document.text, most) for document in documents]
        passages = list(chain.from_iterable(parts))
        values = scores(question, [passage.text for passage in passages])
        taken = fill(ranking(passages, values), _sizes(engine, passages), room)
        for kept in range(len(taken), 0, -1):  # headings and gaps take more than is thought
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
        most //= 2
    raise ContextLengthError(
        f"the question leaves no room for passages of the documents: {engine.model_name} reads "
        f"{engine.context_length:,} tokens with the answer; ask shorter, lower max_tokens or use "
        "a model with a longer context"
    )


def _sizes(engine: "Engine", passages: Sequence[Passage]) -> Callable[[int], int]:
    """What a passage takes, by its number: only those that are asked about are tokenised."""
    return lambda number: len(engine.encoder.text(passages[number].text)) + GAP_TOKENS


def _passage_characters(documents: Sequence[Document], tokens: int, room: int) -> int:
    """Of the longest passage: some 300 tokens, fewer where not even four of these find room."""
    characters = sum(len(document.text) for document in documents)
    fair = min(room // 4, PASSAGE_TOKENS) * characters // tokens
    return min(max(fair, LEAST_CHARACTERS), MAX_CHARACTERS)


def _by_document(
    documents: Sequence[Document], parts: Sequence[list[Passage]], taken: set[int]
) -> Chosen:
    """The passages taken, in order, and only documents that have some."""
    number = count()
    chosen = [[passage for passage in part if next(number) in taken] for part in parts]
    return [(document, some) for document, some in zip(documents, chosen, strict=True) if some]


def _shortened(document: Document, passages: list[Passage]) -> Document:
    """The document with a gap for everything but these passages."""
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
    """Tokens of a prompt as the engine will read it."""
    return len(engine.encoder.prompt(messages).tokens)


def _about_tokens(engine: "Engine", documents: Sequence[Document]) -> int:
    """Tokens of all documents, estimated from samples where they are long."""
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
