"""Random quantised matrices, on a GPU if there is one."""

import torch

from graft.kernels.packed_matrix import PackedMatrix, pack_four_bits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def packed(kind: str, outputs: int, depth: int, dtype: torch.dtype, seed: int = 0) -> PackedMatrix:
    """Random codes and scales of a kind: "fp8", "fp8 blocks", "4 bits" with or without groups."""
    random = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=random)

    if kind.startswith("fp8"):
        groups = depth // 128 if "blocks" in kind else 1
        codes = ((uniform(outputs, depth) - 0.5) * 4).to(torch.float8_e4m3fn)
        matrix = PackedMatrix(codes, uniform(groups, outputs) + 0.5, None, dtype)
    else:
        group = 32 if "32" in kind else depth if "one" in kind else 128
        codes = torch.randint(16, (outputs, depth), generator=random, dtype=torch.uint8)
        zeros = torch.randint(16, (depth // group, outputs), generator=random).to(dtype)
        scales = (uniform(depth // group, outputs) + 0.5).to(dtype)
        matrix = PackedMatrix(pack_four_bits(codes, group), scales, zeros, dtype)
    parts = (x if x is None else x.to(DEVICE) for x in (matrix.codes, matrix.scales, matrix.zeros))
    return PackedMatrix(*parts, dtype)


def reference(matrix: PackedMatrix) -> torch.Tensor:
    """By definition, on the CPU."""
    parts = (x if x is None else x.cpu() for x in (matrix.codes, matrix.scales, matrix.zeros))
    return PackedMatrix(*parts, matrix.dtype).dense().to(DEVICE)
