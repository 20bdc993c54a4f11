"""Kullback-Leibler divergence between exact prefill and KV cache reuse, token by token."""

from collections.abc import Sequence

import torch
from torch import Tensor

from graft.decode.engine import Engine
from graft.decode.prepared_request import PreparedRows
from graft.models.arena import Extent
from graft.tree.draft_tree import chain


def mean_divergence(exact: Tensor, reused: Tensor) -> float:
    """KL(exact || reused) in nats of logits [n, V], the mean over tokens."""
    ours, theirs = (torch.log_softmax(logits.double(), -1) for logits in (exact, reused))
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())


def continuation_logits(
    engine: Engine, prompt: Sequence[int], rows: PreparedRows | None, answer: Sequence[int]
) -> Tensor:
    """Logits [n, V] float32 on the CPU after the prompt and every token of the answer but the last.

    Runs between two steps of the engine; without `rows` everything is computed.
    """
    return engine.exclusive(lambda: _logits(engine, list(prompt), rows, list(answer)))


def _logits(
    engine: Engine, prompt: list[int], rows: PreparedRows | None, answer: list[int]
) -> Tensor:
    model = engine.model
    extent = model.prefixes.reserve(len(prompt) + len(answer))
    try:
        first = prefill_prompt(engine, extent, prompt, rows).cpu()[None]
        if len(answer) == 1:
            return first
        (rest,) = model.score([extent], [chain(answer[:-1])])
        return torch.cat([first, rest.cpu()])
    finally:
        model.close(extent)


def prefill_prompt(
    engine: Engine, extent: Extent, prompt: list[int], rows: PreparedRows | None
) -> Tensor:
    """Prefill a prompt into an extent, with its prepared rows; returns logits [V]."""
    logits = None
    while extent.total < len(prompt):
        end = len(prompt)
        if rows:
            end = rows.unread(extent.total)[1]
            rows.fill(engine.model, extent)
        logits = engine.model.prefill(extent, prompt[extent.total : end])
        if rows:
            rows.keep(engine.model, extent)
    return logits.clone()
