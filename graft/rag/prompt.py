"""The prompt of a round, in parts that are tokenized apart (IDGR, IDR2 section 3.2).

Head (demonstrations), passages, guide, question, text so far; a frame is what stands between
question and answer. Each part's tokens depend on nothing around it, so a passage is the same tokens
in every round, and whatever reuses what was read of it can tell where it stands. Passages carry
their ids as tags. The guide names the ids that are related in this round, those of earlier rounds
that are not, and how relevant each is by its rank.

A chat model gets the demonstrations as turns and the rest as its user's last message; the text so
far is the beginning of its answer. A base model gets it all as one text.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.rag.corpus import Hit, Passage
from graft.rag.families import Family, packaged
from graft.rag.parts import HEAD, PASSAGE, Part

STYLES = ("auto", "chat", "plain")
MOST_UNRELATED = 10  # named: the last ones
_MARK = "\ue000"  # private use: no template has it
_QUOTABLE = (PASSAGE, "question", "text")


def quotable(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Where an answer's words may be copied from: passages, question, text; not demonstrations."""
    spans, start = [], 0
    for part in parts:
        end = start + len(part.tokens)
        if part.kind in _QUOTABLE and end > start:
            spans.append((start, end))
        start = end
    return spans


@dataclass(slots=True)
class Prompter:
    """Makes the prompts of a session. `guided` puts the guide in."""

    engine: Engine
    family: Family
    style: str = "auto"
    guided: bool = True
    _wording: dict[str, str] = field(init=False)
    _head: list[int] = field(init=False)
    _tail: str = field(init=False)  # behind the question

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
        """What every prompt begins with: the demonstrations."""
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
        """What a text that has no answer is made to go on with."""
        blank = " " if begun or self.style == "plain" else ""
        return self.engine.encoder.text(blank + self._wording["cue"])

    @property
    def stop(self) -> str:
        """Where a model goes on with a question of its own."""
        return "\n" + self._wording["question"].partition("{")[0].strip()

    def _tokens(self, passage: Passage) -> list[int]:
        title = self._wording["title"].format(title=passage.title) if passage.title else ""
        text = " ".join(passage.text.split())
        shown = self._wording["passage"].format(id=passage.id, title=title, text=text)
        return self.engine.encoder.text(shown)

    def _guide(self, ids: Sequence[str], seen: Sequence[str]) -> str:
        if not self.guided:
            return self._wording["request"]
        others = [each for each in dict.fromkeys(seen) if each not in ids][-MOST_UNRELATED:]
        ranked = [f"[{each}] {len(ids) - rank}" for rank, each in enumerate(ids)]
        lines = [self._wording["related"].format(ids=_tags(ids))]
        if others:
            lines.append(self._wording["unrelated"].format(ids=_tags(others)))
        lines.append(self._wording["relevance"].format(scores=", ".join(ranked)))
        return "".join([*lines, self._wording["request"]])

    def _question(self, question: str) -> str:
        asked = self._wording["question"].format(question=question)
        return " ".join(filter(None, (self.family.instruction, asked)))

    def _begin(self) -> list[int]:
        """The token a text begins with, if the tokenizer puts one there; templates bring theirs."""
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
        """What a template puts before and behind the last message; demonstrations are turns."""
        turns = []
        for each in self.family.demonstrations:
            asked = self._wording["question"].format(question=each.question)
            turns += [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": each.answer},
            ]
        turns.append({"role": "user", "content": _MARK})
        head, mark, tail = self.engine.encoder.render(turns).partition(_MARK)
        if not mark:
            raise InputError("the model's chat template drops the question; use style plain")
        return head, tail


def _tags(ids: Sequence[str]) -> str:
    return ", ".join(f"[{each}]" for each in ids)
