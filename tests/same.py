"""Are results of Triton kernels the same, wherever in a tile a row lies?"""

import torch


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits on a GPU. Triton's interpreter multiplies with numpy, which on some CPUs rounds a
    row by its place."""
    if found.is_cuda:
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
