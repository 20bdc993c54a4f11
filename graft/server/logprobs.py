"""Log-probabilities in OpenAI's two forms: of the model's own distribution, before temperature and
filters."""

import math
from collections.abc import Sequence
from typing import Any

from graft.decode.engine import Engine
from graft.decode.output import TokenEvent
from graft.server.grammar import Grammars

LEAST = -9999.0  # JSON has no infinity


class TokenTexts:
    """Single tokens as text and bytes; a part of a character is shown as a mark."""

    def __init__(self, engine: Engine, grammars: Grammars) -> None:
        self._tokenizer, self._grammars = engine.loaded.tokenizer, grammars
        self.ends = engine.loaded.eos_ids

    def of(self, token: int) -> tuple[str, list[int]]:
        """The text and the bytes of a token."""
        raw = self._grammars.tokens.decode_bytes([token]) if token < len(self._tokenizer) else b""
        return raw.decode("utf-8", "replace"), list(raw)

    def entry(self, token: int, logprob: float) -> dict[str, Any]:
        """A token in a chat's list."""
        text, raw = self.of(token)
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": raw}


def chat_logprobs(events: Sequence[TokenEvent], texts: TokenTexts) -> dict[str, Any]:
    """`logprobs` of a chat's choice; the token that ends an answer is no part of it."""
    return {
        "content": [
            {
                **texts.entry(event.token, _log(event)),
                "top_logprobs": [texts.entry(token, value) for token, value in event.top],
            }
            for event in events
            if event.token not in texts.ends
        ],
        "refusal": None,
    }


def completion_logprobs(
    events: Sequence[TokenEvent], texts: TokenTexts, offset: int = 0
) -> dict[str, Any]:
    """`logprobs` of a completion's choice; `offset` characters came before."""
    tokens, values, tops, offsets = [], [], [], []
    for event in events:
        if event.token in texts.ends:
            continue
        text, _ = texts.of(event.token)
        tokens.append(text)
        values.append(_log(event))
        tops.append({texts.of(token)[0]: max(value, LEAST) for token, value in event.top})
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _log(event: TokenEvent) -> float:
    return math.log(event.probability) if event.probability else LEAST
