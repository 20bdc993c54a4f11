"""Copies found on the device against a search in Python; see test_decoder_triton.py."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from graft.kernels import copy_triton
from graft.kernels.copy_triton import LONGEST, append_tokens, find_copies

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def searched(text: list[int], drafted: int) -> tuple[int, list[int]]:
    """The length of the latest longest match of the end, and the tokens behind it."""
    best, found = 0, [0] * drafted
    for end in range(1, len(text)):  # the match ends before this position
        length = 0
        while length < min(LONGEST, end) and text[end - 1 - length] == text[-1 - length]:
            length += 1
        if length and length >= best:
            period = len(text) - end
            best, found = length, [text[end + place % period] for place in range(drafted)]
    return best, found


def placed(rows: list[list[int]], most: int) -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.full((len(rows), most), 7, dtype=torch.int32)
    for number, row in enumerate(rows):
        text[number, : len(row)] = torch.tensor(row)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    return text.to(DEVICE), lengths.to(DEVICE)


@pytest.mark.parametrize("block", [8, 64])
def test_drafts_are_the_tokens_behind_the_latest_longest_match(block, monkeypatch):
    monkeypatch.setattr(copy_triton, "BLOCK", block)
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, tokens, rng.integers(1, 60)).tolist() for tokens in (2, 3, 9, 40) * 3]
    rows += [[5], [5, 5], [1, 2, 3] * 12, list(range(30))]
    draft, matched = find_copies(*placed(rows, 70), drafted=6)
    for row, tokens, length in zip(rows, draft.tolist(), matched.tolist(), strict=True):
        assert (length, tokens) == searched(row, 6), row


def test_sampled_tokens_are_appended_where_there_is_space():
    text, lengths = placed([[1, 2, 3], [4], [5, 6, 1, 1]], 6)
    new = torch.tensor([[8, 9, -1], [-1, -1, -1], [3, 2, 9]], dtype=torch.int32, device=DEVICE)
    counts = torch.tensor([2, 0, 3], dtype=torch.int32, device=DEVICE)
    append_tokens(text, lengths, new, counts)
    assert text[0].tolist() == [1, 2, 3, 8, 9, 7]
    assert text[1].tolist() == [4, 7, 7, 7, 7, 7]
    assert text[2].tolist() == [5, 6, 1, 1, 3, 2]
