"""The prompt of a question about documents of any length.

Documents that fit the model's context are used whole. From longer ones BM25 selects the passages
that match the question best, as many as fit beside question and answer, in document order; a line
"[...]" marks each gap.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, count
from typing import TYPE_CHECKING, Any

from graft.documents.prompt import document_messages, first_user_message, heading, rounded
from graft.documents.read import Document
from graft.errors import ContextLengthError
from graft.retrieval.bm25 import content_words, scores
from graft.retrieval.passage import MAX_CHARACTERS, Passage, split
from graft.retrieval.select import fill, ranking
from graft.sampling import SamplingParams

if TYPE_CHECKING:
    from graft.decode.engine import Engine

Selected = list[tuple[int, Document, list[Passage]]]  # the number of each document first
GAP = "[...]"
GAP_TOKENS = 6  # of one gap, estimated
PASSAGE_TOKENS, MIN_CHARACTERS = 300, 80
FLOOR_CHARACTERS = 20  # if not even one passage of MIN_CHARACTERS fits
SAMPLES, SAMPLE_CHARACTERS = 8, 4096  # from which the tokens of a long text are estimated
MIN_QUERY_WORDS = 2  # content words; a shorter question ("And why?") needs the one before it


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Characters `start` to `end` (exclusive) of a document, and its first and last page if any.

    `index` is the number of the document; character `start` is character `at` of the message that
    holds the documents.
    """

    document: str
    start: int
    end: int
    pages: tuple[int, int] | None = None
    index: int = 0
    at: int = 0


@dataclass(frozen=True, slots=True)
class DocumentPrompt:
    """`messages` to answer, and the `passages` of the documents in them.

    If `whole`, the prompt has all documents, each as one passage. `tokens` is the estimated size of
    all documents. `matched` is False if no passage has a word of the question; then the first
    passages were selected.
    """

    messages: list[dict[str, Any]]
    passages: tuple[Excerpt, ...]
    total_passages: int
    tokens: int
    whole: bool = True
    matched: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The selection as JSON-ready values."""
        return {
            "whole": self.whole,
            "matched": self.matched,
            "tokens": self.tokens,
            "total_passages": self.total_passages,
            "passages": [
                {"document": each.document, "start": each.start, "end": each.end,
                 "pages": each.pages}
                for each in self.passages
            ],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages whose last question documents shall answer, and options of the chat template."""

    engine: "Engine"
    messages: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def query(self) -> str:
        """The last question; with earlier ones if it has too few words to search for."""
        questions = [each["content"] for each in self.messages if each["role"] == "user"]
        query = questions.pop() if questions else ""
        while questions and len(content_words(query)) < MIN_QUERY_WORDS:
            query = f"{questions.pop()}\n{query}"
        return query

    def tokens(self, documents: Sequence[Document]) -> int:
        """The number of prompt tokens with these documents."""
        messages = document_messages(self.messages, documents)
        return len(self.engine.encoder.chat(messages, **self.options).tokens)


def document_prompt(  # noqa: PLR0913 (options of one call)
    engine: "Engine",
    question: str,
    documents: Sequence[Document],
    params: SamplingParams | None = None,
    *,
    full: bool = False,
    keep_free: int = 0,
    document_tokens: int | None = None,
) -> DocumentPrompt:
    """The prompt of a question about documents: all of them if they fit, else the best passages.

        documents = graft.read_documents(["contract.pdf"])
        prompt = graft.document_prompt(engine, "When can it be ended?", documents)
        print(engine.generate(prompt.messages).text)

    `keep_free` tokens, on top of `params.max_tokens`, stay free for later turns of a chat. Of
    documents with more than `document_tokens`, passages of so many tokens are used. Raises
    ContextLengthError if `full` is set and the documents do not fit, or if no passage fits.
    """
    chat = Chat(engine, document_messages(question, []))
    return fit_documents(
        chat, documents, params, full=full, keep_free=keep_free, document_tokens=document_tokens
    )


def fit_documents(
    chat: Chat,
    documents: Sequence[Document],
    params: SamplingParams | None = None,
    *,
    full: bool = False,
    keep_free: int = 0,
    document_tokens: int | None = None,
) -> DocumentPrompt:
    """See `document_prompt`; the documents go into the first user message of a chat."""
    engine, context = chat.engine, chat.engine.context_length
    limit = context - min((params or SamplingParams()).max_tokens, context // 2)
    tokens = _about_tokens(engine, documents)
    short = full or document_tokens is None or tokens <= document_tokens
    if short and tokens < 2 * context:  # far longer documents are never tokenized to the end
        tokens = chat.tokens(documents) if documents else 0
        if tokens <= (context - 1 if full else limit):
            messages = document_messages(chat.messages, documents)
            chosen = [
                (number, each, [Passage(each.name, 0, len(each.text), each.text)])
                for number, each in enumerate(documents)
            ]
            return DocumentPrompt(messages, _excerpts(messages, chosen), len(chosen), tokens)
    if full:
        raise ContextLengthError(
            f"the documents have about {rounded(tokens):,} tokens but {engine.model_name} takes "
            f"{context:,} with question and answer; leave out full (--full) to answer from the "
            "passages that fit, or use a model with a longer context"
        )
    alone = chat.tokens([])
    left = limit - alone
    left = min(max(left - keep_free, left // 2), document_tokens or left)
    return _select(chat, documents, tokens, limit=alone + left, max_passage_tokens=left)


def _select(
    chat: Chat, documents: Sequence[Document], tokens: int, *, limit: int, max_passage_tokens: int
) -> DocumentPrompt:
    """A prompt of the best passages: `max_passage_tokens` for them, `limit` for the whole prompt.

    Passages are split shorter if not even one fits.
    """
    engine, characters = chat.engine, 0
    if max_passage_tokens > 0:
        characters = _passage_characters(documents, tokens, max_passage_tokens)
    while characters >= FLOOR_CHARACTERS:
        parts = [split(document.name, document.text, characters) for document in documents]
        passages = list(chain.from_iterable(parts))
        values = scores(chat.query, [passage.text for passage in passages])
        taken = fill(ranking(passages, values), _sizes(engine, passages), max_passage_tokens)
        for kept in range(len(taken), 0, -1):  # headings and gaps may take more than estimated
            chosen = _by_document(documents, parts, set(taken[:kept]))
            shortened = [_shortened(document, some) for _, document, some in chosen]
            if chat.tokens(shortened) > limit:
                continue
            messages = document_messages(chat.messages, shortened)
            excerpts = _excerpts(messages, chosen)
            matched = bool(values.any())
            return DocumentPrompt(
                messages, excerpts, len(passages), tokens, whole=False, matched=matched
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
    return [(index, documents[index], some) for index, some in enumerate(chosen) if some]


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


def _excerpts(messages: list[dict[str, Any]], chosen: Selected) -> tuple[Excerpt, ...]:
    """The passages and their places in the message, where they stand in this order."""
    if not chosen:
        return ()
    content, at, found = messages[first_user_message(messages)]["content"], 0, []
    for index, document, passages in chosen:
        at = content.index(heading(document), at) + len(heading(document))
        for passage in passages:
            inner = passage.text.strip()
            at = content.index(inner, at)
            start, end = passage.start, passage.end
            pages, blank = document.pages_of(start, end), passage.text.index(inner)
            found.append(Excerpt(document.name, start, end, pages, index, at - blank))
            at += len(inner)
    return tuple(found)


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
