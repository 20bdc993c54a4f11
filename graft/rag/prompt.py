"""The prompt of a round, in parts that are tokenized separately (IDGR, IDR2 section 3.2).

Head (demonstrations), passages, guide, question, frame (the text between question and answer), text
so far. The tokens of a part do not depend on the others, so a passage has the same tokens in every
round and its KV cache can be reused. Passages have their ids as tags. The guide lists the ids that
are relevant in this round with a score by rank, and the ids of earlier rounds that are not.

For a chat model the demonstrations are turns, the rest is the last user message, and the text so
far is the beginning of the answer. For a base model all is one text.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.rag.corpus import Hit, Passage
from graft.rag.families import Family, packaged
from graft.rag.parts import HEAD, PASSAGE, Part, PartReuse

STYLES = ("auto", "chat", "plain")
MAX_UNRELATED = 10  # the latest ids in the guide
_MARK = "\ue000"  # private use character
_QUOTABLE = (PASSAGE, "question", "text")


def quotable(parts: Sequence[PartReuse]) -> list[tuple[int, int]]:
    """Spans to draft from: passages, question and text, without the demonstrations."""
    spans, start = [], 0
    for part in parts:
        end = start + part.tokens
        if part.kind in _QUOTABLE and end > start:
            spans.append((start, end))
        start = end
    return spans


@dataclass(slots=True)
class Prompter:
    """Builds the prompts of a session, with a guide if `guided`."""

    engine: Engine
    family: Family
    style: str = "auto"
    guided: bool = True
    _wording: dict[str, str] = field(init=False)
    _head: list[int] = field(init=False)
    _tail: str = field(init=False)  # after the question

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise InputError(f"unknown style {self.style!r}; choose one of {', '.join(STYLES)}")
        self._wording = tomllib.loads(packaged("wording.toml"))
        if self.style == "auto":
            has_template = getattr(self.engine.loaded.tokenizer, "chat_template", None)
            self.style = "chat" if has_template else "plain"
        head, self._tail = self._chat_frame() if self.style == "chat" else self._plain_frame()
        self._head = [*self._begin(), *self.engine.encoder.text(head)] if head else self._begin()

    @property
    def head(self) -> Part:
        """The beginning of every prompt: the demonstrations."""
        return Part(HEAD, self._head, "demonstrations")

    def parts(
        self, question: str, hits: Sequence[Hit], seen: Sequence[str], text: list[int]
    ) -> list[Part]:
        """A prompt with the passages of `hits`; `seen` are the ids of earlier rounds, in order."""
        encode = self.engine.encoder.text
        parts = [self.head]
        if hits:
            parts.append(Part(HEAD, encode(self._wording["context"]), "context"))
            parts += [Part(PASSAGE, self._tokens(hit.passage), hit.passage.id) for hit in hits]
            parts.append(Part("guide", encode(self._guide([h.passage.id for h in hits], seen))))
        parts.append(Part("question", encode(self._question(question))))
        parts.append(Part("frame", encode(self._tail)))
        return [*parts, Part("text", text)] if text else parts

    def cue(self, *, begun: bool) -> list[int]:
        """The tokens that make a text without an answer continue with one."""
        blank = " " if begun or self.style == "plain" else ""
        return self.engine.encoder.text(blank + self._wording["cue"])

    @property
    def stop(self) -> str:
        """The stop string: the model begins another question."""
        return "\n" + self._wording["question"].partition("{")[0].strip()

    def _tokens(self, passage: Passage) -> list[int]:
        title = self._wording["title"].format(title=passage.title) if passage.title else ""
        text = " ".join(passage.text.split())
        shown = self._wording["passage"].format(id=passage.id, title=title, text=text)
        return self.engine.encoder.text(shown)

    def _guide(self, ids: Sequence[str], seen: Sequence[str]) -> str:
        if not self.guided:
            return self._wording["request"]
        others = [each for each in dict.fromkeys(seen) if each not in ids][-MAX_UNRELATED:]
        ranked = [f"[{each}] {len(ids) - rank}" for rank, each in enumerate(ids)]
        lines = [self._wording["related"].format(ids=_tags(ids))]
        if others:
            lines.append(self._wording["unrelated"].format(ids=_tags(others)))
        lines.append(self._wording["relevance"].format(scores=", ".join(ranked)))
        return "".join([*lines, self._wording["request"]])

    def _question(self, question: str) -> str:
        text = self._wording["question"].format(question=question)
        return " ".join(filter(None, (self.family.instruction, text)))

    def _begin(self) -> list[int]:
        """The BOS token if the tokenizer adds one; chat templates have their own."""
        if self.style == "chat":
            return []
        encoder = self.engine.encoder
        added = len(encoder.prompt("a").tokens) - len(encoder.text("a"))
        return encoder.prompt("a").tokens[:added]

    def _plain_frame(self) -> tuple[str, str]:
        shown = [
            f"{self._wording['question'].format(question=each.question)}\n"
            f"{self._wording['answer']} {each.answer}\n\n"
            for each in self.family.demonstrations
        ]
        return "".join(shown), f"\n{self._wording['answer']}"

    def _chat_frame(self) -> tuple[str, str]:
        """The chat template before and after the last message; demonstrations are turns."""
        turns = []
        for each in self.family.demonstrations:
            question = self._wording["question"].format(question=each.question)
            turns += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": each.answer},
            ]
        turns.append({"role": "user", "content": _MARK})
        head, mark, tail = self.engine.encoder.render(turns).partition(_MARK)
        if not mark:
            raise InputError("the model's chat template drops the question; use style plain")
        return head, tail


def _tags(ids: Sequence[str]) -> str:
    return ", ".join(f"[{each}]" for each in ids)
