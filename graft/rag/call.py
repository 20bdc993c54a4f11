"""One call of the model: it generates until the policy, the answer or the model ends it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from graft.decode.engine import Engine
from graft.decode.output import Result, TokenEvent
from graft.decode.prepared_request import PreparedRequest
from graft.decode.stream import Stream
from graft.errors import GraftError
from graft.rag.answer import CUE
from graft.rag.policy import Token, Tokens, spans_of, text_of
from graft.rag.sentences import Language, may_end_sentence


class CancelledCallError(GraftError):
    """The call was cancelled."""


@dataclass(slots=True)
class Call:
    """Iterate `pieces` to generate; then `tokens` and `result` are complete.

    `before` is the text that the call continues. The call ends when `is_complete` returns True.
    After "the answer is" it ends with that sentence instead.
    """

    engine: Engine
    request: PreparedRequest
    before: str
    is_complete: Callable[[Tokens], bool]
    language: Language
    tokens: list[Token] = field(default_factory=list)
    result: Result = field(init=False)  # once `pieces` has ended
    cut: bool = False  # ended by the policy or the answer, not by the model or max_tokens
    stream: Stream | None = None  # once `pieces` has begun
    _cancelled: bool = False

    def cancel(self) -> None:
        """End the call with CancelledCallError; any thread may call it."""
        self._cancelled = True
        if self.stream:
            self.stream.close()

    def pieces(self) -> Iterator[str]:
        """The text as it is generated, one token late: text after the answer is dropped."""
        ends = self.engine.loaded.eos_ids | set(self.request.request.params.stop_token_ids)
        self.stream = stream = self.engine.stream(self.request)
        emitted = 0
        try:
            if self._cancelled:
                stream.close()
            for event in stream:
                if event.token in ends:
                    continue
                text = event.text if self.tokens else self._blank_before(event) + event.text
                self.tokens.append(Token(event.token, text, event.probability, event.entropy))
                if self._is_over():
                    self.cut = True
                    break
                yield text_of(self.tokens[emitted:-1])
                emitted = len(self.tokens) - 1
            if self._cancelled:
                raise CancelledCallError("the answer was cancelled")
            self.result = stream.result
        finally:
            stream.close()
        while self.tokens and not self.tokens[-1].text:  # an incomplete character or a stop string
            self.tokens.pop()
        yield text_of(self.tokens[emitted:])

    def _blank_before(self, first: TokenEvent) -> str:
        """The blank that some tokenizers drop before the first word of a text."""
        piece = self.engine.loaded.tokenizer.convert_ids_to_tokens(first.token)
        lost = piece.startswith("▁") and not first.text.startswith(" ")
        return " " if lost and self.before else ""

    def _is_over(self) -> bool:
        text = text_of(self.tokens)
        announced = CUE.search(self.before + text)
        if not announced:
            return self.is_complete(self.tokens)
        end = self._answer_end(self.before + text, announced.start())
        if end is None:
            return False
        last = end - len(self.before)
        spans = spans_of(self.tokens)
        self.tokens = [t for t, (start, _) in zip(self.tokens, spans, strict=True) if start < last]
        return True

    def _answer_end(self, text: str, start: int) -> int | None:
        """The end of the answer's sentence, once text follows it; None before."""
        last = len(self.tokens[-1].text)
        if not may_end_sentence(text[start : len(text) - last]):
            return None
        sentences = self.language.sentences(text[start:])
        return start + sentences[0][1] if len(sentences) > 1 else None
