"""Rows as tensors: who sees whom, and at which positions."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.train.packing import Rows


@dataclass(frozen=True, slots=True)
class Batch:
    """`tokens`, `documents`, `learned` [B, T]; `places` count from each document's first token.

    `visible` [B, T, T]: itself and what comes before in the same document; [1, T, T] where no row
    has more than one document.
    """

    tokens: Tensor
    documents: Tensor
    learned: Tensor
    places: Tensor
    visible: Tensor
    packed: bool  # whether a row has several documents


def batch_of(rows: Rows, chosen: np.ndarray, device: torch.device) -> Batch:
    """The chosen rows on a device."""
    documents = torch.from_numpy(rows.documents[chosen]).to(device, torch.long)
    columns = torch.arange(documents.shape[1], device=device)
    packed = bool((rows.documents[chosen] > 0).any())
    causal = columns[:, None] >= columns
    visible = (documents[:, :, None] == documents[:, None]) & causal if packed else causal[None]
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    first = torch.where(begins, columns, 0).cummax(1).values
    return Batch(
        tokens=torch.from_numpy(rows.tokens[chosen]).to(device, torch.long),
        documents=documents,
        learned=torch.from_numpy(rows.learned[chosen]).to(device),
        places=columns - first,
        visible=visible,
        packed=packed,
    )


def anchor_offset(places: Tensor, offsets: Tensor, sinks: int) -> Tensor:
    """Positions [B, T]: the first `sinks` of a document stay, the rest is moved by offsets [B].

    So short texts teach a head the positions of long ones, and attention keeps its anchors
    (LongSpec, section 3.2).
    """
    return places + offsets[:, None] * (places >= sinks)
