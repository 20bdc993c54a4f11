"""The likelihood of a text after a prompt, by the model's own distribution (temperature 1)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from graft.decode.engine import Engine
from graft.errors import ContextLengthError, InputError
from graft.models.arena import Extent
from graft.models.language_model import LanguageModel
from graft.tree.draft_tree import chain

CHUNK = 256  # tokens scored at once: their logits take this many rows of the vocabulary


def log_likelihood(engine: Engine, prompt: Sequence[int], text: Sequence[int]) -> list[float]:
    """log p of every token of `text`, each given the prompt and the tokens before it."""
    if not prompt or not text:
        raise InputError("a likelihood needs a prompt and a text after it")
    tokens, context_length = len(prompt) + len(text), engine.context_length
    if tokens > context_length:
        raise ContextLengthError(
            f"prompt and text have {tokens} tokens but {engine.model_name} takes at most "
            f"{context_length}; shorten the prompt"
        )
    return engine.loop.lock.exclusive(lambda: _score(engine, prompt, text))


def _score(engine: Engine, prompt: Sequence[int], text: Sequence[int]) -> list[float]:
    model = engine.model
    engine.loop.collect_finished()
    if engine.running:  # the logits of a step in flight would be lost
        raise InputError("the engine is generating; ask for a likelihood when it is idle")
    extent = model.prefixes.reserve(len(prompt) + len(text))
    try:
        if len(prompt) > 1:
            model.prefill(extent, prompt[:-1])
        return log_probabilities(model, extent, [prompt[-1], *text]).tolist()
    finally:
        model.close(extent)


def log_probabilities(model: LanguageModel, extent: Extent, tokens: Sequence[int]) -> Tensor:
    """log p of every token but the first after the extent, which all but the last join."""
    found = []
    for start in range(0, len(tokens) - 1, CHUNK):
        chunk = tokens[start : min(start + CHUNK, len(tokens) - 1)]
        (logits,) = model.score([extent], [chain(chunk)])
        wanted = torch.tensor(tokens[start + 1 : start + 1 + len(chunk)], device=logits.device)
        found.append(logits.float().log_softmax(-1).gather(1, wanted[:, None])[:, 0].cpu())
        model.commit(extent, list(range(len(chunk))))
    return torch.cat(found)
