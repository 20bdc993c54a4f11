"""Documents and predictions of requests in the rows that the GPU searches (`device_drafts.py`)."""

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graft.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

ROOM = "GRAFT_DOCUMENTS"
DEFAULT_ROOM = 8192
BORDER = -1  # after each text: no token

logger = logging.getLogger(__name__)


def room() -> int:
    """Tokens of documents and prediction in a row."""
    given = os.environ.get(ROOM, "").strip() or str(DEFAULT_ROOM)
    if not given.isdigit():
        raise InputError(f"{ROOM} is a number of tokens, such as {DEFAULT_ROOM}, not {given!r}")
    return int(given)


def row_text(name: str, texts: Sequence[Sequence[int]]) -> "Tensor | None":
    """A request's texts as the beginning of its row; None without any."""
    import torch

    if not texts:
        return None
    most = room()
    tokens = torch.tensor([token for text in texts for token in (*text, BORDER)])
    if len(tokens) > most:
        logger.warning(
            "request %s: drafts are copied from the last %s of %s tokens of documents and "
            "prediction; %s sets how many",
            *(name, f"{most:,}", f"{len(tokens):,}", ROOM),
        )
    return tokens[max(len(tokens) - most, 0) :].int()
