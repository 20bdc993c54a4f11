"""Deferred operations: what shares a launch, and that nothing reads what is not computed yet."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")
from graft.models import deferred
from graft.models.deferred import Deferral, norm, rotate, store

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE = 16


@pytest.fixture(autouse=True)
def launches(monkeypatch) -> Counter[str]:
    """Of our kernels."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        own = getattr(deferred, name)

        def counting(*args):
            counted[name] += 1
            return own(*args)

        monkeypatch.setattr(deferred, name, counting)

    count("add_and_norm")
    count("rotate_and_store")
    return counted


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


def normed(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), gain, 1e-5)


@pytest.fixture
def gains() -> torch.Tensor:
    torch.manual_seed(0)
    return random(2, SIZE)


def test_a_norm_a_sum_and_the_next_norm_are_one_launch(gains, launches):
    residual, change = random(1, 3, SIZE), random(1, 3, SIZE)
    with Deferral():
        total = residual + norm(gains[0], 1e-5, change) * 0.5
        found = norm(gains[1], 1e-5, total)
        assert not launches
        doubled = found.exp()
        assert launches == {"add_and_norm": 1}
    expected = residual + normed(change, gains[0]) * 0.5
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(doubled, normed(expected, gains[1]).exp())


def test_what_is_still_referred_to_is_computed_and_the_rest_is_not(gains, launches):
    residual, change = random(1, 3, SIZE), random(1, 3, SIZE)
    with Deferral():
        middle = norm(gains[0], 1e-5, change)
        found = residual + middle
        norm(gains[1], 1e-5, found)
        view = middle.view(3, SIZE)
        del middle
    assert launches == {"add_and_norm": 2}
    torch.testing.assert_close(view, normed(change, gains[0])[0])
    torch.testing.assert_close(found, residual + view)
    with Deferral():
        norm(gains[0], 1e-5, change + residual)
    assert launches == {"add_and_norm": 2}


def test_inputs_may_change_afterwards(gains):
    x, y = random(1, 3, SIZE), random(1, 3, SIZE)
    before = x + y
    with Deferral():
        found = x + y
        x.view(-1).zero_()
        normal = norm(gains[0], 1e-5, y)
        torch.exp(y, out=y)
    torch.testing.assert_close(found, before)
    torch.testing.assert_close(normal, normed(y.log(), gains[0]))


def test_sums_of_sums_are_computed_in_their_order(gains):
    x, y, z = random(3, 1, 3, SIZE)
    with Deferral():
        both, other = x + y, y + z
        found = both + other
        twice = found + found
        again = norm(gains[0], 1e-5, twice) + twice
    torch.testing.assert_close(found, (x + y) + (y + z))
    torch.testing.assert_close(twice, found * 2)
    torch.testing.assert_close(again, normed(twice, gains[0]) + twice)
    assert both.isfinite().all()


def test_steps_that_failed_are_dropped(launches):
    x = random(1, 3, SIZE)
    sums = []

    def fail() -> None:
        with Deferral():
            sums.append(x + x)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert sums[0].shape == x.shape
    assert not launches


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("nodes", [1, 5])
def test_norms_rotation_and_store_are_one_launch(gains, launches, nodes, heads_first):
    """With the heads normed before or after they are transposed."""
    rows = random(1, nodes, 6 * SIZE)
    parts = [x.view(1, nodes, -1, SIZE) for x in rows.split([3 * SIZE, 2 * SIZE, SIZE], -1)]
    angles = random(1, nodes, SIZE // 2).repeat(1, 1, 2)
    cosine, sine = angles.cos(), angles.sin()
    cache, places = torch.zeros(2, 2, 7, SIZE, device=DEVICE), torch.arange(nodes, device=DEVICE)
    turned = [x.transpose(1, 2) for x in parts]
    expected = rotate(normed(turned[0], gains[0]), normed(turned[1], gains[1]), cosine, sine, SIZE)
    launches.clear()
    value = turned[2].expand(1, 2, nodes, SIZE)
    with Deferral():
        if heads_first:
            query, key = (norm(g, 1e-5, x) for g, x in zip(gains, turned[:2], strict=True))
        else:
            query, key = (
                norm(g, 1e-5, x).transpose(1, 2) for g, x in zip(gains, parts[:2], strict=True)
            )
        query, key = rotate(query, key, cosine, sine, SIZE)
        store(key, value, places, *cache)
        assert launches == {"rotate_and_store": 1}
    torch.testing.assert_close(query, expected[0])
    torch.testing.assert_close(key, expected[1])
    torch.testing.assert_close(cache[0, :, :nodes], key[0])
    torch.testing.assert_close(cache[1, :, :nodes], value[0])
    assert launches == {"rotate_and_store": 1}


def test_rotated_heads_may_be_read_before_they_are_stored(gains, launches):
    x, angles = random(1, 2, 3, SIZE), random(1, 3, SIZE)
    expected = rotate(x, x, angles, angles, SIZE)[0]
    cache, places = torch.zeros(2, 2, 7, SIZE, device=DEVICE), torch.arange(3, device=DEVICE)
    with Deferral():
        _, key = rotate(x, x, angles, angles, SIZE)
        key = torch.cat([key, key], -1)[..., SIZE:]
        store(key, x, places, *cache)
    torch.testing.assert_close(cache[0, :, :3], expected[0])
    assert launches == {"rotate_and_store": 3}
