"""All storages keep, move and grow rows alike."""

import numpy as np
import pytest
import torch

from graft.models.storage import LazyRowStorage, PanelStorage, RowStorage

LAYERS, HEADS, SIZE = 2, 3, 32


def storage(kind: str, dtype: torch.dtype = torch.float32):
    if kind == "panels":
        return PanelStorage(LAYERS, HEADS, SIZE, dtype)
    made = LazyRowStorage if kind == "lazy" else RowStorage
    return made(LAYERS, HEADS, SIZE, dtype, torch.device("cpu"))


def random_rows(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, LAYERS, HEADS, count, SIZE, generator=generator)


every = pytest.mark.parametrize("kind", ["rows", "lazy", "panels"])


@every
def test_what_was_written_is_read_back_in_any_order(kind):
    kept, rows = storage(kind), np.array([5, 0, 47, 16, 15, 31])
    kept.resize(48)
    written = random_rows(len(rows))
    kept.write(rows, written)
    torch.testing.assert_close(kept.read(rows), written, rtol=0, atol=0)
    order = np.array([3, 1, 5, 0])
    torch.testing.assert_close(kept.read(rows[order]), written[:, :, :, order], rtol=0, atol=0)
    assert kept.read(rows).shape == (2, LAYERS, HEADS, len(rows), SIZE)


@every
def test_no_rows_can_be_read_and_written(kind):
    kept, nothing = storage(kind), np.empty(0, np.int64)
    kept.write(nothing, random_rows(0))
    assert kept.read(nothing).shape == (2, LAYERS, HEADS, 0, SIZE)


@every
def test_growing_keeps_rows_and_adds_zeros_and_shrinking_keeps_the_first(kind):
    kept, written = storage(kind), random_rows(32)
    assert kept.rows == 0
    kept.resize(32)
    kept.write(np.arange(32), written)
    kept.resize(64)
    assert kept.rows == 64
    assert torch.equal(kept.read(np.arange(32)), written)
    assert not kept.read(np.arange(32, 64)).any()
    kept.resize(16)
    assert kept.rows == 16
    assert torch.equal(kept.read(np.arange(16)), written[:, :, :, :16])


@every
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (range(3, 20), range(0, 17)),  # down, overlapping
        (range(0, 17), range(3, 20)),  # up, overlapping
        ([4, 9, 30], [2, 3, 4]),  # an accepted path
        ([1, 2], [2, 1]),  # swapped
        ([], []),
    ],
)
def test_moves_read_everything_before_they_write(kind, source, target):
    kept, written = storage(kind), random_rows(32)
    kept.resize(32)
    kept.write(np.arange(32), written)
    source, target = np.array(source, np.int64), np.array(target, np.int64)
    expected = written.clone()
    expected[:, :, :, target] = written[:, :, :, source]
    kept.move(source, target)
    assert torch.equal(kept.read(np.arange(32)), expected)


@pytest.mark.parametrize("kind", ["rows", "panels"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_are_kept_in_the_cache_dtype(kind, dtype):
    kept, written = storage(kind, dtype), random_rows(4)
    kept.resize(16)
    kept.write(np.arange(4), written)
    assert kept.row_bytes == storage(kind).row_bytes // 2
    assert kept.read(np.arange(4)).dtype == dtype
    assert torch.equal(kept.read(np.arange(4)), written.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_rows_of_few_bits_survive_reading_moving_and_writing(dtype):
    kept, written = storage("panels", dtype), 1e4 * random_rows(16)
    kept.resize(48)
    kept.write(np.arange(16), written)
    found = kept.read(np.arange(16))
    limit = torch.finfo(dtype).max
    assert torch.equal(found.float(), written.clamp(-limit, limit).to(dtype).float())
    kept.move(np.arange(16), np.arange(16, 32))
    kept.write(np.arange(32, 48), found)
    assert torch.equal(kept.read(np.arange(16, 32)), found)
    assert torch.equal(kept.read(np.arange(32, 48)), found)
    assert torch.equal(kept.keys_of(1, [(3, 5)]), found[0, 1, :, 3:8].float())


def test_rows_travel_between_the_two_storages():
    rows, panels = storage("rows"), storage("panels")
    rows.resize(32)
    panels.resize(32)
    rows.write(np.arange(32), random_rows(32))
    panels.write(np.arange(32), rows.read(np.arange(32)))
    assert torch.equal(panels.read(np.arange(32)), rows.read(np.arange(32)))


def test_moves_left_to_a_step_are_those_that_were_not_made():
    kept, at_once = storage("lazy"), storage("rows")
    rng, content = np.random.default_rng(0), random_rows(64)
    for each in (kept, at_once):
        each.resize(64)
        each.write(np.arange(64), content)
    taken = 0
    for _ in range(60):
        source = rng.choice(64, rng.integers(1, 6), replace=False)
        target = rng.choice(64, len(source), replace=False)
        kept.move(source, target)
        at_once.move(source, target)
        if rng.random() < 0.3:  # as a step does
            due = kept.take_moves(8)
            taken += len(due)
            kept.kv[:, :, :, due[:, 1]] = kept.kv[:, :, :, due[:, 0]].clone()
            assert torch.equal(kept.kv, at_once.kv)
    assert taken > 20
    assert torch.equal(kept.read(np.arange(64)), at_once.read(np.arange(64)))
