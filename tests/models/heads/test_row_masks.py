"""Block-sparse masks of packed rows against dense ones."""

import platform

import pytest
import torch
from tiny import tiny_network
from tiny_heads import tiny_head
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import flex_attention

from graft.models.heads import row_masks
from graft.models.heads.row_masks import (
    FAR,
    chain_masks,
    dense_mask,
    masked_attention,
    row_mask,
    shift_mask,
    sparse_mask,
    window_mask,
)

DOCUMENTS = torch.tensor([[0] * 5 + [1] * 20 + [2] * 7, [0] * 32, [0] * 16 + [1] * 16])
BLOCK = 8
BANDS = [
    [(0, FAR)],
    [(0, 7)],
    [(3, FAR)],
    [(2, FAR), (1, 2), (0, 1)],
    [(40, FAR)],
]


def test_a_column_sees_its_document_within_the_band():
    mask = row_mask(DOCUMENTS, (1, 4))
    for row, query, key in torch.cartesian_prod(*map(torch.arange, (3, 32, 32))).tolist():
        same = DOCUMENTS[row, query] == DOCUMENTS[row, key]
        assert mask[row, query, key] == (same and 1 <= query - key < 4)


def test_a_chain_sees_the_first_steps_keys_and_one_of_each_later_step():
    first, second, third = chain_masks(torch.zeros(1, 6, dtype=torch.int64), 3)
    assert first[0].tolist() == torch.ones(6, 6).tril().bool().tolist()
    assert second[0, 4].nonzero()[:, 0].tolist() == [0, 1, 2, 3, 6 + 4]
    assert third[0, 4].nonzero()[:, 0].tolist() == [0, 1, 2, 6 + 3, 12 + 4]


@pytest.mark.parametrize("bands", BANDS)
def test_only_blocks_with_visible_pairs_are_computed(bands):
    limits = torch.tensor(bands)
    dense = dense_mask(DOCUMENTS, limits).view(3, 4, BLOCK, -1, BLOCK)
    sparse = sparse_mask(DOCUMENTS, limits, BLOCK)
    assert torch.equal(sparse.to_dense()[:, 0].bool(), dense.any(4).any(2))
    assert sparse.full_kv_num_blocks.sum() == dense.all(4).all(2).sum()


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("bands", BANDS)
def test_sparse_attention_equals_dense_attention(bands):
    limits, generator = torch.tensor(bands), torch.Generator().manual_seed(1)
    queries = torch.randn(3, 4, 32, 16, generator=generator)
    keys, values = torch.randn(2, 3, 2, len(bands) * 32, 16, generator=generator)
    sparse = sparse_mask(DOCUMENTS, limits, BLOCK)
    found = flex_attention(queries, keys, values, block_mask=sparse, enable_gqa=True)
    expected = masked_attention(queries, keys, values, dense_mask(DOCUMENTS, limits))
    torch.testing.assert_close(found, expected)


def test_without_a_mask_attention_is_causal():
    queries, keys, values = torch.randn(3, 1, 2, 8, 4)
    found = masked_attention(queries, keys, values, None)
    documents = torch.zeros(1, 8, dtype=torch.int64)
    expected = masked_attention(queries, keys, values, row_mask(documents, (0, FAR)))
    torch.testing.assert_close(found, expected)


def test_memory_of_a_sparse_mask_is_linear_in_the_row():
    """But for the numbers of blocks: 32K columns take a thousandth of a dense mask."""
    documents = torch.zeros(1, 1 << 15, dtype=torch.int64)
    mask = sparse_mask(documents, torch.tensor([(0, FAR)]))
    numbers = sum(each.numel() for each in mask.as_tuple() if torch.is_tensor(each))
    assert numbers < (1 << 30) / 1000


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch compiles flex_attention on x86")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_head_is_one_graph_for_all_documents_and_shifts(monkeypatch):
    """As a GPU trains it, but for the backend."""
    monkeypatch.setattr(row_masks, "dense_mask", sparse_mask)
    for kind in ("eagle3", "longspec"):
        head, frames = tiny_head(kind, tiny_network(), knows=False), CompileCounter()
        compiled = torch.compile(head, dynamic=False, backend=frames, fullgraph=True)
        embeddings, positions = torch.randn(2, 256, 64), torch.arange(256).expand(2, -1)
        for number in range(3):
            documents = (torch.arange(256) // (50 + 30 * number)).expand(2, -1).contiguous()
            if kind == "eagle3":
                given = torch.randn(2, 256, 192), positions, chain_masks(documents, 3)
            else:
                memory = tuple(torch.randn(2, 2, 2, 256, 16))
                masks = window_mask(documents, 100), [shift_mask(documents, 1 + number)]
                given = memory, positions, *masks
            with torch.no_grad():
                torch.testing.assert_close(compiled(embeddings, *given), head(embeddings, *given))
        assert frames.frame_count == 1
