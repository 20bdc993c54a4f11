"""`graft chat`: a conversation in the terminal."""

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graft.cli.answer import answer
from graft.cli.documents import fit_documents, keep_documents, report_selection
from graft.cli.failures import one_line
from graft.cli.options import COLOR, AnswerOptions, AnswerPool, takes_options
from graft.cli.show import end_line, footer, token_printer
from graft.errors import GraftError

if TYPE_CHECKING:
    from graft import DocumentPrompt, Engine, SamplingParams
    from graft.decode.output import TokenEvent
    from graft.documents import Document

KEPT = "later questions use the same passages; /reset selects new ones"
HELP = "/reset starts a new conversation, /exit, /quit or Ctrl-D ends it, Ctrl-C stops an answer."


@dataclass(frozen=True, kw_only=True)
class ChatOptions(AnswerOptions, AnswerPool):
    """The options of `chat`."""


@takes_options
def chat(
    *,
    options: ChatOptions,
    color: COLOR = False,
) -> None:
    """Chat with a model, about documents if any are given.

    If the documents are longer than the model's context, the first question selects passages;
    later questions use the same passages, until /reset.

    Example: graft chat --doc examples/service_agreement.md
    """
    # Wrong options are refused before torch is imported and a model is loaded.
    options.check()
    pool = options.pool_options()
    params, documents = options.sampling(), options.documents()
    engine = options.load(pool=pool)
    conversation = Conversation(options, engine, params, documents)
    print(HELP, file=sys.stderr)
    while (line := read_line()) is not None:
        if line in ("/exit", "/quit"):
            break
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            print(HELP, file=sys.stderr)
        elif line:
            conversation.turn(line, color=color)


@dataclass(slots=True)
class Conversation:
    """The messages so far and the engine that continues them; a failed turn changes nothing."""

    options: AnswerOptions
    engine: "Engine"
    params: "SamplingParams"
    documents: "list[Document]"
    messages: list[dict[str, str]] = field(default_factory=list)
    first_prompt: "DocumentPrompt | None" = None  # with the documents

    def reset(self) -> None:
        """Drop all messages; the documents stay."""
        self.messages = []

    def turn(self, question: str, *, color: bool) -> None:
        """Answer one question; Ctrl-C ends the answer and keeps the text generated so far."""
        pieces: list[str] = []
        printed = token_printer(color=color)

        def show(event: "TokenEvent") -> None:
            pieces.append(event.text)
            printed(event)

        try:
            messages = [*self.messages, *self._new_messages(question)]
            given = answer(
                self.engine,
                messages,
                self.params,
                self.options.draft,
                show,
            )
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr)
            if not pieces:
                return
            reply = "".join(pieces)
        except GraftError as error:
            print(f"error: {one_line(error)}; /reset starts a new conversation", file=sys.stderr)
            return
        else:
            reply = given.result.text
            end_line(reply)
            footer(given, color=color, load_seconds=self._load_seconds())
            if not self.messages and self.options.cache and self.first_prompt:
                keep_documents(self.engine, self.first_prompt)
        self.messages = [*messages, {"role": "assistant", "content": reply}]

    def _load_seconds(self) -> float:
        """Of the engine in the footer of the first turn."""
        return 0.0 if self.messages else self.engine.load_seconds

    def _new_messages(self, question: str) -> list[dict[str, str]]:
        if self.messages:
            return [{"role": "user", "content": question}]
        prompt = fit_documents(
            self.engine,
            question,
            self.documents,
            self.params,
            full=self.options.full,
            document_tokens=self.options.document_tokens(),
            keep_free=self.engine.context_length // 4,
        )
        auto = bool(self.options.document_tokens())
        report_selection(prompt, self.engine, self.documents, auto=auto)
        if not prompt.whole:
            print(KEPT, file=sys.stderr)
        self.first_prompt = prompt
        return prompt.messages


def read_line() -> str | None:
    """The next line of input, None at its end; Ctrl-C shows the prompt again."""
    from rich.console import Console

    # The prompt goes to stderr, so that a piped conversation leaves only answers on stdout.
    console = Console(stderr=True)
    if sys.stdin.isatty():
        import readline  # noqa: F401 (gives input() its line editing and history)
    while True:
        try:
            console.print("[bold]>[/bold] ", end="")
            return input().strip()
        except EOFError:
            console.print()
            return None
        except KeyboardInterrupt:
            console.print()
