"""Copies found on the device against a search in Python; see test_decoder_triton.py."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from graft.kernels import copy_triton
from graft.kernels.copy_triton import (
    LONGEST,
    RATE_UNIT,
    DraftState,
    append_counted,
    append_sampled,
    draft_copies,
    search_copies,
)

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


def fresh_state(rows: int) -> DraftState:
    """Of rows that had a token in the last step."""
    prior = torch.stack([torch.arange(32.0), torch.full((32,), 2.0)]).to(DEVICE)
    state = DraftState(rows, prior, DEVICE, 50, 7)
    state.new.fill_(1)
    return state


@pytest.mark.parametrize("block", [8, 64])
def test_drafts_are_the_tokens_behind_the_latest_longest_match(block, monkeypatch):
    monkeypatch.setattr(copy_triton, "BLOCK", block)
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, tokens, rng.integers(1, 60)).tolist() for tokens in (2, 3, 9, 40) * 3]
    rows += [[5], [5, 5], [1, 2, 3] * 12, list(range(30))]
    state = fresh_state(len(rows))
    text, state.lengths = placed(rows, 70)
    search_copies(text, len(rows), state)
    draft = draft_copies(text, len(rows), state, 6)
    matched = state.matched.tolist()
    for row, tokens, length in zip(rows, draft.tolist(), matched, strict=True):
        assert (length, tokens) == searched(row, 6), row
    assert state.rates.tolist() == [int(RATE_UNIT * length / (length + 2)) for length in matched]


def test_a_row_without_a_new_token_has_no_draft():
    state = fresh_state(2)
    text, state.lengths = placed([[1, 2, 1, 2], [1, 2, 1, 2]], 8)
    state.new[0] = 0
    search_copies(text, 2, state)
    assert draft_copies(text, 2, state, 2).tolist() == [[0, 0], [1, 2]]
    assert state.rates.tolist() == [0, RATE_UNIT // 2]


def test_rows_of_a_batch_may_have_other_places_in_the_text():
    state, places = fresh_state(4), torch.tensor([3, 1], device=DEVICE)
    text, state.lengths = placed([[9], [1, 2, 1], [9], [5, 6, 7, 5]], 8)
    sampled = torch.tensor([[6, 7], [2, 9]], device=DEVICE)
    counts = torch.tensor([2, 1], dtype=torch.int32, device=DEVICE)
    append_counted(sampled, counts, text, state, places)
    assert state.lengths.tolist() == [1, 4, 1, 6]
    assert text[3, :6].tolist() == [5, 6, 7, 5, 6, 7]
    assert state.newest.tolist() == [0, 2, 0, 7]
    search_copies(text, 2, state, places)
    draft = draft_copies(text, 2, state, 2, places)
    assert draft.tolist() == [[5, 6], [1, 2]]
    assert draft_copies(text, 2, state, 2, places, newest=True).tolist() == [
        [7, 5, 6],
        [2, 1, 2],
    ]
    assert (state.rates[places] > 0).all()
    more = torch.cat([draft, torch.full_like(draft[:, :1], 40)], 1)
    append_counted(more, counts, text, state, places)
    rejected = (state.seen - fresh_state(4).seen)[1]
    assert rejected.sum() > 0  # two tokens and no third one: the second draft token was rejected


def test_all_tokens_are_appended_where_no_counts_are_given():
    state, places = fresh_state(2), torch.tensor([1, 0], device=DEVICE)
    text, state.lengths = placed([[9], [5, 6]], 8)
    append_counted(torch.tensor([[7], [8]], device=DEVICE), None, text, state, places)
    assert [row[:3] for row in text.tolist()] == [[9, 8, 7], [5, 6, 7]]
    assert state.newest.tolist() == [8, 7]


def test_rates_are_known_without_drafts():
    state = fresh_state(1)
    text, state.lengths = placed([[1, 2, 1, 2]], 8)
    search_copies(text, 1, state)
    assert draft_copies(text, 1, state, 0).shape == (1, 0)
    assert state.rates.tolist() == [RATE_UNIT // 2]


def test_valid_sampled_tokens_are_appended_where_there_is_space():
    state = fresh_state(5)
    text, lengths = placed([[1, 2, 3], [4], [5, 6, 1, 1], [3]], 6)
    state.lengths[:4] = lengths
    sampled = torch.tensor([[8, 9, -1], [7, 7, 7], [3, 2, 9], [-1, -1, -1]], dtype=torch.int32)
    discarded = torch.tensor([False, True, False, False, False], device=DEVICE)
    last, counts, valid = append_sampled(sampled.to(DEVICE), discarded, text, state)
    assert text[0].tolist() == [1, 2, 3, 8, 9, 7]
    assert text[1].tolist() == [4, 7, 7, 7, 7, 7]
    assert text[2].tolist() == [5, 6, 1, 1, 3, 2]
    assert state.lengths.tolist() == [5, 1, 6, 1, 0]
    assert last.tolist() == [9, 4, 9, 3]
    assert counts.tolist() == [2, 0, 3, 0]
    assert valid.tolist() == [[8, 9, -1], [-1, -1, -1], [3, 2, 9], [-1, -1, -1]]


def test_tokens_beyond_the_vocabulary_are_not_valid():
    state = fresh_state(1)
    text, state.lengths = placed([[1]], 6)
    sampled = torch.tensor([[9, 50]], dtype=torch.int32, device=DEVICE)
    last, counts, _ = append_sampled(sampled, sampled[:, 0] < 0, text, state)
    assert (last.tolist(), counts.tolist(), state.lengths.tolist()) == ([9], [1], [2])


def test_accepted_and_rejected_drafts_are_counted_by_match_length():
    state = fresh_state(5)
    state.matched.copy_(torch.tensor([3, 5, 3, 0, 3]))
    text, state.lengths = placed([[1], [1], [1], [1], [1]], 9)
    sampled = torch.full((5, 5), -1, dtype=torch.int32, device=DEVICE)
    sampled[0, :3], sampled[1, :5], sampled[3, :1], sampled[4, :2] = 2, 2, 2, 2
    for _ in range(2):  # the second time nothing is left to count
        append_sampled(sampled, sampled[:, 0] < -1, text, state)
    change = (state.seen - fresh_state(5).seen).cpu()
    assert change[0].nonzero().flatten().tolist() == [3, 5]
    assert change[0, [3, 5]].tolist() == [3.0, 4.0]
    assert change[1].nonzero().flatten().tolist() == [3]  # the row without a token says nothing
    assert change[1, 3].item() == 2.0


@pytest.mark.parametrize(("token", "right"), [(3, 1), (9, 0)])
def test_matches_are_checked_without_drafts(token, right):
    """What follows 1, 2 is compared with the next token."""
    state = fresh_state(2)
    text, state.lengths = placed([[1, 2, 3, 1, 2], [4]], 9)
    search_copies(text, 2, state)
    draft_copies(text, 2, state, 0)
    sampled = torch.tensor([[token], [4]], dtype=torch.int32, device=DEVICE)
    for _ in range(2):
        append_sampled(sampled, sampled[:, 0] < 0, text, state)
    change = (state.seen - fresh_state(2).seen).cpu()
    assert change.nonzero().tolist() == [[1 - right, 2]]
