"""Log-probabilities in OpenAI's two forms, of the distribution before temperature and filters."""

import math
from collections.abc import Sequence
from typing import Any

from graft.decode.engine import Engine
from graft.decode.output import TokenEvent
from graft.server.grammar import Grammars

MIN_LOGPROB = -9999.0  # JSON has no infinity


class TokenTexts:
    """Single tokens as text and bytes; an incomplete character becomes U+FFFD."""

    def __init__(self, engine: Engine, grammars: Grammars) -> None:
        self._tokenizer, self._grammars = engine.loaded.tokenizer, grammars
        self.eos_ids = engine.loaded.eos_ids

    def of(self, token: int) -> tuple[str, list[int]]:
        """The text and the bytes of a token."""
        raw = self._grammars.tokens.decode_bytes([token]) if token < len(self._tokenizer) else b""
        return raw.decode("utf-8", "replace"), list(raw)

    def entry(self, token: int, logprob: float) -> dict[str, Any]:
        """A token of a chat's `logprobs`."""
        text, raw = self.of(token)
        return {"token": text, "logprob": max(logprob, MIN_LOGPROB), "bytes": raw}


def chat_logprobs(events: Sequence[TokenEvent], texts: TokenTexts) -> dict[str, Any]:
    """`logprobs` of a chat's choice, without the end token."""
    return {
        "content": [
            {
                **texts.entry(event.token, _log(event)),
                "top_logprobs": [texts.entry(token, value) for token, value in event.top],
            }
            for event in events
            if event.token not in texts.eos_ids
        ],
        "refusal": None,
    }


def completion_logprobs(
    events: Sequence[TokenEvent], texts: TokenTexts, offset: int = 0
) -> dict[str, Any]:
    """`logprobs` of a completion's choice after `offset` characters."""
    tokens, values, tops, offsets = [], [], [], []
    for event in events:
        if event.token in texts.eos_ids:
            continue
        text, _ = texts.of(event.token)
        tokens.append(text)
        values.append(_log(event))
        tops.append({texts.of(token)[0]: max(value, MIN_LOGPROB) for token, value in event.top})
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _log(event: TokenEvent) -> float:
    return math.log(event.probability) if event.probability else MIN_LOGPROB
