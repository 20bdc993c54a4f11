"""Recurrent states follow the rows that they belong to."""

import numpy as np
import pytest
import torch

from graft.models.arena import BLOCK, Arena
from graft.models.state_storage import ZERO, StateStorage


@pytest.fixture
def storage():
    made = StateStorage(1, 1, 4, torch.float32, torch.device("cpu"), [torch.empty(3)])
    made.resize(4 * BLOCK)
    return made


def put(storage, rows, kept=None):
    """Write rows; the state of each kept one is its own number."""
    rows = np.array(rows)
    kept = np.arange(len(rows)) if kept is None else np.array(kept)
    slots = storage.take(rows, kept)
    storage.states[0][torch.from_numpy(slots)] = torch.from_numpy(rows[kept]).float()[:, None]


def state(storage, segments):
    return storage.states[0][storage.before(segments)].tolist()


def test_a_sequence_begins_with_zeros(storage):
    assert storage.before([(0, 0)]) == ZERO
    assert state(storage, [(16, 0)]) == [0] * 3


def test_the_state_of_the_last_committed_row_counts(storage):
    put(storage, [0, 1, 2, 3])
    assert state(storage, [(0, 3)]) == [2] * 3
    assert storage.states_used == 2  # rows before it are dropped, row 3 may still be committed


def test_committing_a_path_moves_states_without_copying(storage):
    arena = Arena(storage)
    extent = arena.reserve(16)
    put(storage, extent.start + np.arange(6))
    pool = storage.states[0]
    arena.commit([(extent, [0, 2, 5])])
    assert state(storage, extent.segments) == [extent.start + 5] * 3
    assert storage.states[0] is pool
    arena.release(extent)
    assert storage.states_used == 0


def test_rows_that_are_written_again_lose_their_state(storage):
    put(storage, [0, 1, 2])
    put(storage, [1, 2], kept=[1])
    assert 1 not in storage._slots
    assert state(storage, [(0, 3)]) == [2] * 3


def test_two_sequences_share_a_state_until_both_are_gone(storage):
    put(storage, [0])
    storage.move(np.array([0]), np.array([32]))
    storage.release(0, 16)
    assert state(storage, [(32, 1)]) == [0] * 3
    assert storage.states_used == 1
    storage.release(32, 48)
    assert storage.states_used == 0


def test_others_can_share_whole_spacings_only(storage):
    put(storage, range(BLOCK + 40), kept=[BLOCK - 1, BLOCK + 39])
    assert storage.spacing == BLOCK
    assert storage.resumable([(0, BLOCK + 40)]) == BLOCK
    assert storage.resumable([(0, BLOCK - 1)]) == 0
    assert state(storage, [(0, BLOCK + 40)]) == [BLOCK + 39] * 3
    assert storage.resumable([(0, BLOCK + 40)]) == BLOCK  # it is kept


def test_large_states_are_kept_less_often():
    small, large = (
        StateStorage(1, 1, 4, torch.float32, torch.device("cpu"), [torch.empty(size)])
        for size in (8, 1 << 16)
    )
    assert (small.spacing, large.spacing) == (BLOCK, 4 * BLOCK)
    assert large.row_bytes == 32 + 4 * (1 << 16) // large.spacing


def test_a_row_without_a_state_cannot_be_continued(storage):
    with pytest.raises(KeyError):
        storage.before([(0, 3)])
