"""An engine that generates scripted texts, call by call."""

from dataclasses import replace
from types import SimpleNamespace

from tiny import END, VOCABULARY, tiny_tokenizer

from graft.decode.output import Result, TokenEvent
from graft.decode.stats import Stats
from graft.decode.text import Encoder


class ScriptedStream:
    def __init__(self, request, events, reason):
        self._events, self._reason = events, reason
        self.closed = False
        self._stats = Stats(prompt_tokens=len(request.prompt), tokens=len(events))
        self._seed = request.params.seed

    def __iter__(self):
        for event in self._events:
            assert not self.closed
            yield event

    @property
    def result(self):
        text = "".join(event.text for event in self._events)
        ids = [event.token for event in self._events]
        return Result(text, ids, self._reason, self._seed, self._stats)

    def close(self):
        self.closed = True


class ScriptedEngine:
    """`script` holds, for each call, a text or (text, {word: probability}); `end` after it if the
    text ends with |. `requests` are the calls made."""

    model_name, context_length = "scripted", 100_000

    def __init__(self, *script):
        self._script = list(script)
        tokenizer = tiny_tokenizer()
        forward = SimpleNamespace(frequencies=tuple)
        self.model = SimpleNamespace(
            prefixes=SimpleNamespace(used=False), forward=forward, has_states=False
        )
        self.loaded = SimpleNamespace(
            tokenizer=tokenizer, eos_ids=frozenset({END}), model=self.model, identity="scripted",
            dtype="fp32", forward_name="scripted", device="cpu",
        )  # fmt: skip
        self.encoder = Encoder(tokenizer, VOCABULARY)
        self.requests, self.streams = [], []

    def prompt(self, call):
        return self.loaded.tokenizer.decode(self.requests[call].prompt)

    def stream(self, prepared):
        request = replace(prepared.request, prompt=prepared.request.prompt.tokens)
        self.requests.append(request)
        scripted = self._script.pop(0)
        text, doubts = scripted if isinstance(scripted, tuple) else (scripted, {})
        ends = text.endswith("|")
        events = []
        for piece in _words(text.removesuffix("|")):
            probability = doubts.get(piece.strip(), 0.99)
            for place, token in enumerate(self.encoder.text(piece)):
                shown = self.loaded.tokenizer.decode([token])
                events.append(TokenEvent(token, shown, "", place, 0, probability, 0.1))
        if len(events) > request.params.max_tokens:
            events, ends = events[: request.params.max_tokens], False
        if ends:
            events.append(TokenEvent(END, "", "", 0))
        self.streams.append(ScriptedStream(request, events, "stop" if ends else "length"))
        return self.streams[-1]


def _words(text):
    """Each with the blank before it."""
    pieces = []
    for letter in text:
        if letter == " " or not pieces:
            pieces.append("")
        pieces[-1] += letter
    return pieces
