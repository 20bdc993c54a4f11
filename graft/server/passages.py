"""Documents as passages that adaptive retrieval finds, as `graft ask` splits them."""

from collections.abc import Sequence

from graft.decode.document_prompt import Excerpt
from graft.documents import Document
from graft.rag.answer import Answer
from graft.rag.corpus import Bm25Corpus
from graft.rag.corpus_files import Known, document_passages


class Passages:
    """Documents as the passages of a corpus, with their places."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents, known = documents, Known()
        self._excerpts: dict[str, Excerpt] = {}
        found = []
        for index, document in enumerate(documents):
            for passage, start in document_passages(document, known):
                end = start + len(passage.text)
                self._excerpts[passage.id] = Excerpt(document.name, start, end, index=index)
                found.append(passage)
        self.corpus = Bm25Corpus(found)

    def excerpts(self, answer: Answer) -> list[Excerpt]:
        """The passages that were in a prompt of the answer."""
        ids = dict.fromkeys(hit.passage.id for each in answer.rounds for hit in each.hits)
        return [self._excerpts[each] for each in ids]
