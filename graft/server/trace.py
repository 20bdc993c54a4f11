"""Who guessed each token, how sure the model was of it, and where a copied one was copied from.

Asked for by `speculative: {"trace": true}`. Every choice, and every chunk of a stream, then has a
`trace`: a list with an entry for each token, also for those that show no text of their own.

- `token`, `text`: the token, and the text that is certain since it came;
- `source`: who guessed it (prompt, document, prediction, output, store, head, model, ...; both,
  where several did), null where nobody did;
- `probability`: the model's own of the token, before temperature and filters;
- `step`: the forward that brought it; 0 is the one that ended the prompt;
- `copied_from`: null, or which `kind` of text (message, prompt, document, prediction, output;
  template, for what the server put around the messages), the `index` of the
  message, prompt or document, the `token` there, and that token's characters, from `start` to
  `end`, counted in Unicode code points of the text as it was sent; null where no text was. A
  message of several parts counts as these joined by newlines. A chat's tokens are numbered through
  all of its prompt, an output's from its first one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from graft.decode.engine import Engine
from graft.decode.output import TokenEvent
from graft.decode.text import Prompt
from graft.draft.copies.texts import Origin
from graft.server.messages import chat_characters, plain_text
from graft.server.schema import ChatRequest, CompletionRequest, Sampled, TextRequest
from graft.server.tools import offered

Characters = list[tuple[int, int]]  # of each token of a text, from and to


@dataclass(frozen=True, slots=True)
class Place:
    """A token in what the client sent; without characters where it sent none."""

    kind: str
    index: int
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Of one prompt: where its tokens, and those of the texts beside it, stand."""

    prompt: list[Place | None]
    documents: list[Characters]
    prediction: Characters

    def entries(self, events: Iterable[TokenEvent]) -> list[dict[str, Any]]:
        """What is told of some tokens."""
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
        texts = self.documents if origin.source == "document" else [self.prediction]
        return Place(origin.source, origin.text, *texts[origin.text][origin.token])


def is_traced(asked: TextRequest) -> bool:
    """Whether a client wants to know."""
    return bool(asked.speculative and asked.speculative.trace)


def trace_chat(asked: ChatRequest, engine: Engine) -> Trace:
    """Of a chat."""
    places = chat_characters(engine, asked.messages, offered(asked), asked.chat_template_kwargs)
    return _trace(asked, engine, [Place("message", *at) if at else None for at in places])


def trace_completion(
    asked: CompletionRequest, prompt: Prompt, number: int, engine: Engine
) -> Trace:
    """Of one of a completion's prompts, the one with this number."""
    if isinstance(prompt, str):
        spans = engine.encoder.characters(prompt, special=True)
        return _trace(asked, engine, [Place("prompt", number, *span) for span in spans])
    return _trace(asked, engine, [Place("prompt", number)] * len(prompt))


def _trace(asked: Sampled, engine: Engine, prompt: list[Place | None]) -> Trace:
    texts = [each if isinstance(each, str) else each.text for each in asked.documents or []]
    prediction = plain_text(asked.prediction.content) if asked.prediction else ""
    characters = engine.encoder.characters
    return Trace(prompt, [characters(text) for text in texts], characters(prediction))
