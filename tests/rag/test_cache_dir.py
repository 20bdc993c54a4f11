"""The KV cache of a session on disk, for later sessions of the same model."""

from dataclasses import replace

import pytest
from rag_tiny import CORPUS, QUESTION, rag_engine
from tiny import tiny_engine, tiny_network

from graft.errors import InputError
from graft.rag.document_cache import DocumentCache
from graft.rag.reuse import Reuse
from graft.rag.session import Session
from graft.sampling import SamplingParams

SHORT = SamplingParams(max_tokens=24, temperature=0.8, seed=3)


def answered(engine, folder, reuse="exact", **options):
    """The answer of a session that has only the folder."""
    engine.model.prefixes.clear()
    own = {"policy": "fl", "threshold": 8, "guided": False} | options
    session = Session(engine, CORPUS, reuse=reuse, cache_dir=folder, **own)
    return session.ask(QUESTION, SHORT), session.cache.statistics()


@pytest.mark.parametrize("reuse", ["exact", "cics", "cics+all", "demos"])
def test_another_engine_of_the_same_model_uses_the_cache(tmp_path, reuse):
    first, before = answered(rag_engine(), tmp_path, reuse)
    assert before.disk_bytes > 0
    again, after = answered(rag_engine(), tmp_path, reuse)
    assert again.text == first.text or reuse.startswith("cics")
    assert before.head.exact_hits < after.head.exact_hits
    if reuse == "exact":
        assert again.totals.reused_tokens > first.totals.reused_tokens
    assert after.disk_bytes == before.disk_bytes or reuse.startswith("cics")


def test_another_model_does_not_use_the_cache(tmp_path):
    answered(rag_engine(), tmp_path)
    other = tiny_engine(tiny_network(seed=7, max_position_embeddings=16384))
    checkpoint = replace(other.loaded.checkpoint, fingerprint="other weights")
    other.loaded = replace(other.loaded, checkpoint=checkpoint)
    plain = Session(other, CORPUS, reuse="off", policy="fl", threshold=8, guided=False)
    expected = plain.ask(QUESTION, SHORT)
    answer, found = answered(other, tmp_path)
    assert answer.token_ids == expected.token_ids
    fresh, alone = answered(other, tmp_path / "alone")
    assert fresh.token_ids == expected.token_ids
    assert found.passages == alone.passages


def test_folder_stays_within_its_size(tmp_path):
    _, whole = answered(rag_engine(), tmp_path / "whole")
    limit = whole.disk_bytes // 2
    _, half = answered(rag_engine(), tmp_path / "half", cache_size=limit)
    assert 0 < half.disk_bytes <= limit


def test_folder_needs_a_reuse_with_a_cache(tmp_path):
    engine = rag_engine()
    with pytest.raises(InputError, match="reuse off caches nothing"):
        Session(engine, CORPUS, reuse="off", cache_dir=tmp_path)
    shared = DocumentCache(engine, Reuse())
    with pytest.raises(InputError, match="has its own folder"):
        Session(engine, CORPUS, reuse=shared, cache_dir=tmp_path)
