"""Sampling over rows of logits: Triton kernels on GPUs, else torch."""

from torch import Tensor

from graft.machine import has_triton


def greedy_rows(logits: Tensor) -> Tensor:
    """Index [M] of the largest of each row [M, V]."""
    if not draws_fast(logits):
        return logits.argmax(-1)
    from graft.kernels.decoder_triton import argmax_rows

    return argmax_rows(logits)


def sampled_rows(logits: Tensor, keys: Tensor, temperatures: Tensor) -> Tensor:
    """See `draw_triton.draw_rows`; only where `draws_fast`."""
    from graft.kernels.draw_triton import draw_rows

    return draw_rows(logits, keys, temperatures)


def draws_fast(logits: Tensor) -> bool:
    """Whether Triton kernels sample these rows."""
    return logits.is_cuda and has_triton()
