"""Rotates cached keys from the positions they were computed at to others.

A rotary embedding rotates pairs of a key's components by angles that grow with its position, so a
key at another position is the same key rotated by the difference of the angles. This holds for
scaled embeddings (llama3, yarn), too. A probe finds which components form a pair and which of the
network's frequencies a layer uses: a text prefilled at shifted positions must have the same values
and rotated keys in every layer. Other networks, such as with learned positions, are refused.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.errors import UnsupportedModelError
from graft.kernels.tree_layout import TreeLayout
from graft.models.language_model import LanguageModel
from graft.models.probe import probe_paths

SHIFT = 77  # positions between the probe's two prefills
_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 1e-1, torch.float16: 5e-2}


@dataclass(frozen=True, slots=True, eq=False)
class _Rotation:
    """How some keys are rotated: pairs of the first components, by `frequencies` [n] float32 on
    the CPU; none where keys do not depend on positions."""

    frequencies: Tensor
    interleaved: bool  # pairs are neighbours, not component i of each half

    def rotated(self, keys: Tensor, before: np.ndarray, after: np.ndarray) -> Tensor:
        """Keys [..., n, D] of positions `before`, rotated to positions `after`."""
        count = len(self.frequencies)
        if not count:
            return keys
        angles = (self._angles(after) - self._angles(before)).to(keys.device)  # [n, count]
        cosine, sine = angles.cos().float(), angles.sin().float()
        whole = keys.float()
        rotary, rest = whole[..., : 2 * count], keys[..., 2 * count :]
        if self.interleaved:
            first, second = rotary[..., ::2], rotary[..., 1::2]
        else:
            first, second = rotary[..., :count], rotary[..., count:]
        pair = (first * cosine - second * sine, second * cosine + first * sine)
        joined = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat([joined.to(keys.dtype), rest], -1)

    def _angles(self, positions: np.ndarray) -> Tensor:
        """Computed in 32 bits with the rounding of networks; returned in 64."""
        return (torch.from_numpy(positions).float()[:, None] * self.frequencies).double()


_UNROTATED = _Rotation(torch.empty(0), interleaved=False)


@dataclass(frozen=True, slots=True, eq=False)
class KeyRotation:
    """How every layer of a model rotates its keys."""

    layers: list[_Rotation]

    def rotated(self, rows: Tensor, before: np.ndarray, after: np.ndarray) -> Tensor:
        """Rows [2, L, K, n, D] (`Storage.read`) rotated from positions `before` [n] to `after`."""
        if np.array_equal(before, after):
            return rows
        keys = torch.empty_like(rows[0])
        for rotation in dict.fromkeys(self.layers):
            own = [i for i, each in enumerate(self.layers) if each is rotation]
            keys[own] = rotation.rotated(rows[0, own], before, after)
        return torch.stack([keys, rows[1]])


def frequencies_name(model: LanguageModel) -> str:
    """A digest of a model's frequencies."""
    own = (each.detach().float().cpu().numpy().tobytes() for each in model.forward.frequencies())
    return hashlib.sha256(b"\n".join(own)).hexdigest()[:16]


def find_rotation(model: LanguageModel) -> KeyRotation:
    """How a model rotates its keys, by the probe; UnsupportedModelError where it does not.

    Runs forwards: where an engine uses the model, call it between steps.
    """
    here, there = _read_at(model, 0), _read_at(model, SHIFT)
    tolerance = _TOLERANCE[here.dtype]
    places = np.arange(here.shape[3])
    rotations = _rotations(model)
    errors = np.stack(
        [
            _errors(rotation.rotated(here[0], places, SHIFT + places), there[0])
            for rotation in rotations
        ]
    )  # [rotations, L]
    worst = max(errors.min(0).max(), _errors(here[1], there[1]).max())
    if not worst <= tolerance:
        raise UnsupportedModelError(
            "the keys and values of this model depend on positions by more than a rotation "
            f"(they differ by {worst:.2g}); use reuse off or exact"
        )
    return KeyRotation([rotations[i] for i in errors.argmin(0)])


def _rotations(model: LanguageModel) -> list[_Rotation]:
    size = model.arena.storage.read(np.arange(0)).shape[-1]
    own = [each.detach().float().cpu() for each in model.forward.frequencies()]
    fitting = [each for each in own if 2 * len(each) <= size]
    rotating = [
        _Rotation(each, interleaved=interleaved)
        for interleaved in (False, True)
        for each in fitting
    ]
    return [*rotating, _UNROTATED]


def _read_at(model: LanguageModel, position: int) -> Tensor:
    """[2, L, K, n, D] of a text that begins at `position`."""
    text, paths = probe_paths(model.vocabulary)
    tokens = np.array([*text, *paths[0]])
    count = np.arange(len(tokens))
    extent = model.prefixes.reserve(len(tokens))
    try:
        rows = extent.start + count
        segments = [[(extent.start, 0)]]
        first = np.array([0, len(tokens)])
        layout = TreeLayout(first, segments, rows, position + count, count - 1)
        model.forward.run(tokens, layout, count[-1:])
        return model.arena.storage.read(rows).clone()
    finally:
        model.close(extent)


def _errors(found: Tensor, expected: Tensor) -> np.ndarray:
    """[L]: mean relative error of rows [L, K, n, D] by component, so that a few large components
    do not hide the rest."""
    off = (found.float() - expected.float()).square().mean(2).sqrt()
    size = expected.float().square().mean(2).sqrt()
    return (off / size.clamp(min=1e-6)).mean((1, 2)).cpu().numpy()
