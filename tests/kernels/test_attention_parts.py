"""Attention over rows in several places, merged as if they lay together."""

import numpy as np
import pytest
import torch

from graft.kernels.attention_parts import attend_rows, merge_parts
from graft.models.storage import PanelStorage, RowStorage

HEADS, KV_HEADS, SIZE, SCALE = 6, 2, 32, 0.2
generator = torch.Generator().manual_seed(0)


def drawn(*shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def plain(query, keys, values, mask=None):
    """One softmax over all keys, with torch's own attention."""
    keys, values = (x.repeat_interleave(HEADS // KV_HEADS, -3) for x in (keys, values))
    mask = None if mask is None else mask[..., None, :, :]
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(query, keys, values, mask, scale=SCALE)


@pytest.mark.parametrize("cuts", [[], [5], [0, 9], [3, 4, 17]])
def test_merged_parts_equal_one_attention(cuts):
    query, keys, values = (
        drawn(HEADS, 3, SIZE),
        drawn(KV_HEADS, 20, SIZE),
        drawn(KV_HEADS, 20, SIZE),
    )
    mask = torch.rand(3, 20, generator=generator) < 0.6
    mask[:, 7] = True
    places = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]
    parts = [
        attend_rows(query, keys[:, each], values[:, each], SCALE, mask[:, each]) for each in places
    ]
    expected = plain(query, keys, values, mask)
    torch.testing.assert_close(merge_parts(parts)[0], expected.float(), atol=1e-5, rtol=1e-5)


def test_sequences_of_a_batch_have_their_own_masks():
    query = drawn(4, HEADS, 3, SIZE)
    keys, values = drawn(4, KV_HEADS, 9, SIZE), drawn(4, KV_HEADS, 9, SIZE)
    mask = torch.rand(4, 3, 9, generator=generator) < 0.5
    mask[..., 0] = True
    found, _ = attend_rows(query, keys, values, SCALE, mask)
    torch.testing.assert_close(
        found, plain(query, keys, values, mask).float(), atol=1e-5, rtol=1e-5
    )


def test_fully_masked_query_gets_zeros_and_changes_nothing():
    query, keys, values = drawn(HEADS, 2, SIZE), drawn(KV_HEADS, 4, SIZE), drawn(KV_HEADS, 4, SIZE)
    nothing = attend_rows(query, keys, values, SCALE, torch.zeros(2, 4, dtype=torch.bool))
    empty = attend_rows(query, keys[:, :0], values[:, :0], SCALE)
    some = attend_rows(query, keys, values, SCALE)
    assert not merge_parts([nothing, empty])[0].any()
    torch.testing.assert_close(merge_parts([nothing, some, empty]), some)


@pytest.mark.parametrize(
    "segments", [[(0, 5)], [(16, 32)], [(48, 20), (0, 17), (80, 1)], [(37, 11), (3, 2)]]
)
@pytest.mark.parametrize("layers", [1, 2])
def test_all_storages_give_the_same_attention(segments, layers):
    """To its last layer or layers, each with heads of its own."""
    rows = RowStorage(3, KV_HEADS, SIZE, torch.float32, torch.device("cpu"))
    panels = PanelStorage(3, KV_HEADS, SIZE)
    for storage in (rows, panels):
        storage.resize(96)
    content = drawn(2, 3, KV_HEADS, 96, SIZE).float()
    everywhere = np.arange(96)
    rows.write(everywhere, content)
    panels.write(everywhere, content)
    query = drawn(layers * HEADS, 3, SIZE).float()
    seen = torch.cat([torch.arange(first, first + count) for first, count in segments])
    keys, values = content[:, -layers:].flatten(1, 2)[:, :, seen]
    expected = plain(query, keys, values)
    scores = query @ keys.repeat_interleave(HEADS // KV_HEADS, 0).mT * SCALE
    for storage in (rows, panels):
        found, sums = storage.attend(layers, query, segments, SCALE)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(sums, scores.logsumexp(-1), atol=1e-5, rtol=1e-5)
