"""How likely a text is after a prompt, by the model's own distribution (temperature 1)."""

from collections.abc import Sequence
from functools import partial

import torch

from graft.decode.engine import Engine
from graft.errors import ContextLengthError, InputError
from graft.tree.draft_tree import chain

PIECE = 256  # tokens scored at once: their logits take as many rows of the vocabulary


def log_likelihood(engine: Engine, prompt: Sequence[int], text: Sequence[int]) -> list[float]:
    """log p of every token of `text`, each given the prompt and the tokens before it."""
    if not prompt or not text:
        raise InputError("a likelihood needs a prompt and a text behind it")
    most = engine.model.context_length
    if len(prompt) + len(text) > most:
        raise ContextLengthError(
            f"prompt and text have {len(prompt) + len(text)} tokens but {engine.model_name} reads "
            f"at most {most}; shorten the prompt"
        )
    found: list[float] = []
    engine.step_lock.exclusive(partial(_score, engine, prompt, text, found))
    return found


def _score(engine: Engine, prompt: Sequence[int], text: Sequence[int], found: list[float]) -> None:
    model = engine.model
    engine.sweep()
    if engine.busy:  # its logits would be lost
        raise InputError("the engine is answering; ask for a likelihood when it is done")
    asked = [prompt[-1], *text[:-1]]  # each speaks of the token behind it
    extent = model.prefixes.reserve(len(prompt) + len(text))
    try:
        if len(prompt) > 1:
            model.prefill(extent, prompt[:-1])
        for start in range(0, len(asked), PIECE):
            piece = asked[start : start + PIECE]
            (logits,) = model.score([extent], [chain(piece)])
            wanted = torch.tensor(text[start : start + PIECE], device=logits.device)
            scores = logits.float().log_softmax(-1).gather(1, wanted[:, None])
            found += scores[:, 0].tolist()
            model.commit(extent, list(range(len(piece))))
    finally:
        model.close(extent)
