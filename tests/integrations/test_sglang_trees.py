"""The trees SGLang's worker gets, without SGLang: `make test-sglang` drives its own code."""

from types import SimpleNamespace

import numpy as np
import pytest

from graft.integrations.sglang import FILLER, Running, Trees, documents_of, pools_of
from graft.match.pool import Pools

DOCUMENT = list(range(10, 60))
NODES = 8


def draft(trees, *requests):
    tokens, mask = trees.draft(requests)
    count = len(requests)
    return tokens.reshape(count, NODES), mask.reshape(count, NODES, NODES)


def paths(tokens, mask):
    """Of every node but the root the tokens that lead to it."""
    return [tokens[np.flatnonzero(row)][1:].tolist() for row in mask[1:]]


def test_a_copy_is_among_the_paths():
    tokens, mask = draft(Trees(NODES), Running("a", [*DOCUMENT, 1], [10, 11, 12]))
    assert tokens[0, 0] == 12
    assert [13, 14, 15, 16] in paths(tokens[0], mask[0])


def test_every_tree_is_padded_with_children_of_the_root():
    tokens, mask = draft(Trees(NODES), Running("a", [5, 6, 7], [8]))
    assert tokens.dtype == np.int64
    assert mask.dtype == bool
    assert paths(tokens[0], mask[0]) == [[FILLER]] * (NODES - 1)


def test_requests_draft_only_from_their_own_documents():
    trees = Trees(NODES)
    known = Running("a", [1], [10, 11], documents=[DOCUMENT])
    tokens, mask = draft(trees, known, Running("b", [1], [10, 11]))
    assert [12, 13] in paths(tokens[0], mask[0])
    assert [12, 13] not in paths(tokens[1], mask[1])


def test_a_request_continues_in_any_row_and_restarts_once_dropped():
    trees = Trees(NODES)
    draft(trees, Running("a", DOCUMENT, [10]), Running("b", DOCUMENT, [30]))
    tokens, mask = draft(
        trees, Running("b", DOCUMENT, [30, 31]), Running("a", DOCUMENT, [10, 11, 12])
    )
    assert [32, 33] in paths(tokens[0], mask[0])
    assert [13, 14] in paths(tokens[1], mask[1])
    trees.keep(["b"])
    tokens, mask = draft(trees, Running("a", DOCUMENT, [10, 11, 12, 20]))
    assert [21, 22] in paths(tokens[0], mask[0])


@pytest.mark.parametrize(
    ("custom", "documents"),
    [
        ({"documents": [[1, 2]]}, [[1, 2]]),
        ({"documents": ["text"]}, []),
        ({"documents": [[1.5]]}, []),
        ({}, []),
        (None, []),
    ],
)
def test_documents_are_lists_of_token_ids(custom, documents):
    sampling = SimpleNamespace(custom_params=custom)
    assert documents_of(SimpleNamespace(rid="a", sampling_params=sampling)) == documents


def test_a_pool_drafts_from_finished_answers_of_the_same_salt(monkeypatch):
    trees = Trees(NODES, Pools())
    draft(trees, Running("a", [1, 2, 3], [40]))
    draft(trees, Running("a", [1, 2, 3], [40, *DOCUMENT]))
    trees.keep([])
    later = [Running("b", [5], [11, 12, 13]), Running("c", [5], [11, 12, 13], salt="other")]
    tokens, mask = draft(trees, *later)
    assert [14, 15, 16] in paths(tokens[0], mask[0])
    assert paths(tokens[1], mask[1]) == [[FILLER]] * (NODES - 1)
    assert pools_of(None) is None
    monkeypatch.setenv("GRAFT_POOL", "memory")
    assert pools_of(None).capacity == 0
