"""One call of the model: it writes until the policy has enough, the answer is given or it ends."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from graft.decode.engine import Engine
from graft.decode.output import Result, TokenEvent
from graft.decode.prepared_request import PreparedRequest
from graft.rag.answer import CUE
from graft.rag.policy import Token, Tokens, places, text_of
from graft.rag.sentences import Language, may_end_sentence


@dataclass(slots=True)
class Call:
    """Iterate `pieces` to let it write; what is there then is complete.

    `before` is the text that the call continues. It ends early where `enough` says so, unless the
    answer has been announced: then its sentence is finished first, and nothing comes behind it.
    """

    engine: Engine
    request: PreparedRequest
    before: str
    enough: Callable[[Tokens], bool]
    language: Language
    tokens: list[Token] = field(default_factory=list)
    result: Result | None = None
    cut: bool = False  # ended here, not by the model or its limit

    def pieces(self) -> Iterator[str]:
        """The text as it comes, one token late: what comes behind the answer is taken back."""
        ends = self.engine.loaded.eos_ids | set(self.request.request.params.stop_token_ids)
        stream = self.engine.stream(self.request)
        told = 0
        try:
            for event in stream:
                if event.token in ends:
                    continue
                text = event.text if self.tokens else self._blank_before(event) + event.text
                self.tokens.append(Token(event.token, text, event.probability, event.entropy))
                if self._is_over():
                    self.cut = True
                    break
                yield text_of(self.tokens[told:-1])
                told = len(self.tokens) - 1
            self.result = stream.result
        finally:
            stream.close()
        while self.tokens and not self.tokens[-1].text:  # half a character, or a stop string
            self.tokens.pop()
        yield text_of(self.tokens[told:])

    @property
    def ended(self) -> bool:
        """Whether the model itself had no more to say."""
        return not self.cut and self.result is not None and self.result.finish_reason == "stop"

    def _blank_before(self, first: TokenEvent) -> str:
        """Some tokenizers take the blank of a text's first word away; here it goes on."""
        piece = self.engine.loaded.tokenizer.convert_ids_to_tokens(first.token)
        lost = piece.startswith("▁") and not first.text.startswith(" ")
        return " " if lost and self.before else ""

    def _is_over(self) -> bool:
        text = text_of(self.tokens)
        announced = CUE.search(self.before + text)
        if not announced:
            return self.enough(self.tokens)
        end = self._answer_end(self.before + text, announced.start())
        if end is None:
            return False
        own = end - len(self.before)
        spans = places(self.tokens)
        self.tokens = [t for t, (start, _) in zip(self.tokens, spans, strict=True) if start < own]
        return True

    def _answer_end(self, text: str, start: int) -> int | None:
        """Where the sentence of the answer ends, once something comes behind it."""
        last = len(self.tokens[-1].text)
        if not may_end_sentence(text[start : len(text) - last]):
            return None
        sentences = self.language.sentences(text[start:])
        return start + sentences[0][1] if len(sentences) > 1 else None
