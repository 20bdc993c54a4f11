"""A tiny model with short demonstrations and a small corpus."""

from tiny import tiny_engine, tiny_network

from graft.rag.corpus import Bm25Corpus, Passage

CORPUS = Bm25Corpus(
    [
        Passage("1", "the apple and the pear in the water", "apple"),
        Passage("2", "a river and a boat on the water", "river"),
        Passage("3", "the cat near the river and the apple", "cat"),
        Passage("4", "on the other hand, in winter there are no apples", "winter"),
    ]
)
QUESTION = "Where is the apple in the river?"


def rag_engine(*, rows=200_000, **options):
    """An engine with a prefix cache and a context for demonstrations of one token per letter."""
    engine = tiny_engine(tiny_network(max_position_embeddings=16384), **options)
    engine.model.prefixes.use(max_rows=rows)
    return engine
