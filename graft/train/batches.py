"""Batches of packed rows: tokens, documents and positions."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.train.packing import PADDING, Rows

MAX_DOCUMENTS = 1 << 15


@dataclass(frozen=True, slots=True)
class Batch:
    """`tokens`, `documents`, `loss_mask` [B, T]; `places` are positions within each document.

    Documents are numbered in ascending order within a row, and padding is one more.
    """

    tokens: Tensor
    documents: Tensor
    loss_mask: Tensor
    places: Tensor
    packed: bool  # whether a row has several documents
    rows: tuple[int, ...] = ()  # their numbers in training


def batch_of(rows: Rows, chosen: np.ndarray, device: torch.device) -> Batch:
    """The chosen rows on a device."""
    documents = torch.from_numpy(rows.documents[chosen]).to(device, torch.long)
    documents = torch.where(documents == PADDING, MAX_DOCUMENTS, documents)
    columns = torch.arange(documents.shape[1], device=device)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    first = torch.where(starts, columns, 0).cummax(1).values
    return Batch(
        tokens=torch.from_numpy(rows.tokens[chosen]).to(device, torch.long),
        documents=documents,
        loss_mask=torch.from_numpy(rows.loss_mask[chosen]).to(device),
        places=columns - first,
        packed=bool((rows.documents[chosen] > 0).any()),
    )


def anchor_offset(places: Tensor, offsets: Tensor, sinks: int) -> Tensor:
    """Positions [B, T]: all but the first `sinks` of a document are shifted by offsets [B].

    A head learns the positions of long texts from short ones, and attention keeps its sinks
    (LongSpec, section 3.2).
    """
    return places + offsets[:, None] * (places >= sinks)
