"""The arena against a naive model: a list of numbers for every extent."""

import numpy as np
import pytest
import torch

from graft.models.arena import ALIGN, Arena, Extent, OutOfRowsError
from graft.models.storage import PanelStorage, RowStorage

SIZE = 16


def row_storage() -> RowStorage:
    return RowStorage(2, 1, SIZE, torch.float32, torch.device("cpu"))


def panel_storage() -> PanelStorage:
    return PanelStorage(2, 1, SIZE)


def put(arena: Arena, rows: np.ndarray, numbers: list[int]) -> None:
    """Fill whole rows with a number each; values hold its negative."""
    one = torch.tensor(numbers, dtype=torch.float32)[:, None].expand(-1, SIZE)
    arena.storage.write(rows, torch.stack([one, -one])[:, None, None].expand(-1, 2, -1, -1, -1))


def content(arena: Arena, extent: Extent) -> list[int]:
    """The numbers of the committed rows, those of the prefixes first."""
    rows = np.concatenate([start + np.arange(count) for start, count in extent.segments])
    keys, values = arena.storage.read(rows)
    assert (keys == -values).all()
    assert (keys == keys[:1, :, :, :1]).all()  # all layers and columns of a row moved together
    return keys[0, 0, :, 0].int().tolist()


class Naive:
    """Random operations on an arena and what every extent should hold."""

    def __init__(self, arena: Arena, seed: int) -> None:
        self.arena, self.rng = arena, np.random.default_rng(seed)
        self.expected: list[tuple[Extent, list[int]]] = []
        self.next = 1
        self.refused = 0

    def step(self) -> None:
        choices = [self.open, self.extend, self.extend, self.extend, self.release, self.truncate]
        try:
            choices[self.rng.integers(len(choices))]()
        except OutOfRowsError:
            self.refused += 1
        self.check()

    def pick(self, *, writable: bool) -> int | None:
        able = [i for i, (x, _) in enumerate(self.expected) if x.users == 1 or not writable]
        return int(self.rng.choice(able)) if able else None

    def open(self) -> None:
        base = self.pick(writable=False) if self.rng.random() < 0.4 else None
        if len(self.expected) >= 8:
            return
        prefix, numbers = self.expected[base] if base is not None else (None, [])
        self.expected.append(
            (self.arena.reserve(int(self.rng.integers(0, 40)), prefix), list(numbers))
        )

    def extend(self) -> None:
        chosen = self.pick(writable=True)
        if chosen is None:
            return
        extent, numbers = self.expected[chosen]
        nodes = int(self.rng.integers(1, 30))
        self.arena.ensure(extent, extent.length + nodes)
        fresh = list(range(self.next, self.next + nodes))
        self.next += nodes
        put(self.arena, extent.start + extent.length + np.arange(nodes), fresh)
        path = sorted(self.rng.choice(nodes, self.rng.integers(0, nodes + 1), replace=False))
        self.arena.commit([(extent, [int(node) for node in path])])
        numbers += [fresh[node] for node in path]

    def truncate(self) -> None:
        chosen = self.pick(writable=True)
        if chosen is None:
            return
        extent, numbers = self.expected[chosen]
        gone = int(self.rng.integers(0, extent.length + 1))
        self.arena.truncate(extent, extent.length - gone)
        del numbers[len(numbers) - gone :]

    def release(self) -> None:
        """Only its owner's use ends; who builds on it keeps it alive."""
        chosen = self.pick(writable=False)
        if chosen is not None:
            self.arena.release(self.expected.pop(chosen)[0])

    def held(self) -> list[Extent]:
        """Extents in use, prefixes whose owner is gone included."""
        found: dict[int, Extent] = {}
        for extent, _ in self.expected:
            one: Extent | None = extent
            while one:
                found[id(one)] = one
                one = one.prefix
        return sorted(found.values(), key=lambda extent: extent.start)

    def check(self) -> None:
        held = self.held()
        assert self.arena.taken == sum(extent.capacity for extent in held)
        end = 0
        for extent in held:
            assert extent.start % ALIGN == 0
            assert extent.start >= end
            assert extent.length <= extent.capacity
            end = extent.start + extent.capacity
        assert end <= self.arena.storage.rows
        assert self.arena.storage.rows % ALIGN == 0
        for extent, numbers in self.expected:
            assert extent.total == len(numbers)
            assert content(self.arena, extent) == numbers


@pytest.mark.parametrize("storage", [row_storage, panel_storage])
@pytest.mark.parametrize(("max_rows", "seed"), [(None, 0), (None, 1), (250, 2), (400, 3)])
def test_nothing_is_lost_in_a_long_life(storage, max_rows, seed):
    naive = Naive(Arena(storage(), max_rows=max_rows), seed)
    for _ in range(300):
        naive.step()
    assert (naive.refused > 0) == (max_rows is not None)
    assert max_rows is None or naive.arena.storage.rows <= max_rows
    while naive.expected:
        naive.release()
        naive.check()
    assert naive.arena.taken == 0


def test_a_full_arena_says_so_and_goes_on_working():
    arena = Arena(row_storage(), max_rows=64)
    first, second = arena.reserve(32), arena.reserve(32)
    with pytest.raises(OutOfRowsError, match="80 rows wanted, 64 allowed") as error:
        arena.reserve(1)
    assert "\n" not in str(error.value)
    with pytest.raises(OutOfRowsError):
        arena.ensure(first, 33)
    assert (first.capacity, second.capacity, arena.taken) == (32, 32, 64)
    arena.release(second)
    arena.ensure(first, 64)
    assert first.capacity == 64


def test_a_refused_sequence_holds_no_use_of_its_prefix():
    arena = Arena(row_storage(), max_rows=32)
    prefix = arena.reserve(32)
    with pytest.raises(OutOfRowsError):
        arena.reserve(16, prefix)
    arena.release(prefix)
    assert arena.taken == 0


def test_a_limit_between_two_multiples_of_sixteen_is_rounded_down():
    arena = Arena(panel_storage(), max_rows=100)
    extent = arena.reserve(90)
    assert (extent.capacity, arena.storage.rows) == (96, 96)
    with pytest.raises(OutOfRowsError):
        arena.ensure(extent, 97)


def test_the_last_extent_moves_into_an_earlier_gap_when_the_end_is_reached():
    arena = Arena(row_storage(), max_rows=96)
    gone, last = arena.reserve(64), arena.reserve(32)
    put(arena, last.start + np.arange(3), [7, 8, 9])
    arena.commit([(last, [0, 2])])
    arena.release(gone)
    arena.ensure(last, 40)
    assert (last.start, content(arena, last)) == (0, [7, 9])


def test_a_prefix_is_freed_after_the_last_who_builds_on_it():
    arena = Arena(row_storage())
    prefix = arena.reserve(16)
    first, second = arena.reserve(16, prefix), arena.reserve(16, prefix)
    arena.release(prefix)
    arena.release(first)
    assert arena.taken == 32
    arena.release(second)
    assert arena.taken == 0


def test_what_others_build_on_stays_and_its_owner_may_grow_behind_it():
    arena = Arena(row_storage())
    owner = arena.reserve(16)
    put(arena, owner.start + np.arange(5), [1, 2, 3, 4, 5])
    arena.commit([(owner, [0, 1, 2, 3, 4])])
    other = arena.reserve(16, owner, shared=3)
    put(arena, other.start + np.arange(1), [9])
    arena.commit([(other, [0])])
    assert (other.total, content(arena, other)) == (4, [1, 2, 3, 9])
    with pytest.raises(AssertionError):
        arena.truncate(owner, 2)
    arena.truncate(owner, 3)
    put(arena, owner.start + 3 + np.arange(1), [6])
    arena.commit([(owner, [0])])
    arena.ensure(owner, 300)  # moves it
    assert content(arena, owner) == [1, 2, 3, 6]
    assert content(arena, other) == [1, 2, 3, 9]
    arena.release(other)
    arena.truncate(owner, 0)


def test_a_trimmed_extent_gives_back_the_rows_behind_its_last():
    arena = Arena(row_storage())
    extent = arena.reserve(160)
    put(arena, extent.start + np.arange(3), [1, 2, 3])
    arena.commit([(extent, [0, 1, 2])])
    arena.trim(extent)
    assert (arena.taken, content(arena, extent)) == (16, [1, 2, 3])


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17])
def test_extents_have_the_requested_rows(rows):
    extent = Arena(row_storage()).reserve(rows)
    assert extent.capacity >= max(rows, 1)
    assert (extent.length, extent.total, extent.segments) == (0, 0, [(0, 0)])
