"""The source of each token: the drafter, the target's probability, and the place of a copy.

Requested by `speculative: {"trace": true}`. Every choice, and every chunk of a stream, then has a
`trace`: a list with an entry for each token, also for tokens without text.

- `token`, `text`: the token id, and the text that it completes;
- `source`: the drafter of an accepted draft token (prompt, document for draft texts, prediction,
  output, store, head, model, ...; both, if several proposed it); null for a token of the target;
- `probability`: the target's probability of the token, before temperature and filters;
- `step`: the number of the forward pass; 0 is the last one of the prefill;
- `copied_from`: null, or the `kind` of text (message, document, prompt, draft_text, prediction,
  output; or template, for text that the server adds around messages and documents), the `index` of
  the message, document (those of corpora follow the request's), prompt or draft text, the `token`
  there, and its characters from `start` to `end`, in Unicode code points of
  the text as it was sent; null if no text was sent. A message of several parts counts as the parts
  joined by newlines. Tokens of a chat are numbered through the whole prompt, those of an output
  from its first one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from graft.decode.engine import Engine
from graft.decode.output import TokenEvent
from graft.draft.copies.texts import Origin
from graft.server.messages import Place, PreparedChat
from graft.server.schema import ChatRequest, CompletionRequest, Sampled

Characters = list[tuple[int, int]]  # start and end of each token of a text


@dataclass(frozen=True, slots=True)
class Trace:
    """The places of the tokens of one prompt and of the texts to draft from."""

    prompt: list[Place | None]
    draft_texts: list[Characters]
    prediction: Characters

    def entries(self, events: Iterable[TokenEvent]) -> list[dict[str, Any]]:
        """The entries of some tokens."""
        return [
            {
                "token": event.token,
                "text": event.text,
                "source": event.source or None,
                "probability": event.probability,
                "step": event.step,
                "copied_from": self._copied_from(event.origin) if event.origin else None,
            }
            for event in events
        ]

    def _copied_from(self, origin: Origin) -> dict[str, Any]:
        place = self._place(origin) or Place("template", 0)
        return {
            "kind": place.kind,
            "index": place.index,
            "token": origin.token,
            "start": place.start,
            "end": place.end,
        }

    def _place(self, origin: Origin) -> Place | None:
        if origin.source == "prompt":
            return self.prompt[origin.token]
        if origin.source == "output":
            return Place("output", 0)
        if origin.source == "prediction":
            return Place("prediction", 0, *self.prediction[origin.token])
        return Place("draft_text", origin.text, *self.draft_texts[origin.text][origin.token])


def trace_field(trace: Trace | None, events: list[TokenEvent]) -> dict[str, Any]:
    """The field `trace` of a choice or chunk; empty if none is requested."""
    return {"trace": trace.entries(events)} if trace and events else {}


def trace_chat(body: ChatRequest, chat: PreparedChat, engine: Engine) -> Trace:
    """The trace of a chat."""
    return _trace(body, engine, chat.places())


def trace_completion(
    body: CompletionRequest, prompt: str | list[int], number: int, engine: Engine
) -> Trace:
    """The trace of the prompt with this number of a completion."""
    if isinstance(prompt, str):
        spans = engine.encoder.characters(prompt, special=True)
        return _trace(body, engine, [Place("prompt", number, *span) for span in spans])
    return _trace(body, engine, [Place("prompt", number)] * len(prompt))


def _trace(body: Sampled, engine: Engine, prompt: list[Place | None]) -> Trace:
    texts, prediction = body.texts_to_copy()
    characters = engine.encoder.characters
    return Trace(prompt, [characters(text) for text in texts], characters(prediction))
